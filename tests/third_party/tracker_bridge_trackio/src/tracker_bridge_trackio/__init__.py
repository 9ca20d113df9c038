"""Adapter for trackio's local store. Imports the public `tracker_bridge.adapter` only, and trackio in `open`."""

from tracker_bridge_trackio._adapter import TrackioAdapter, TrackioOptions

__all__ = ["TrackioAdapter", "TrackioOptions"]
