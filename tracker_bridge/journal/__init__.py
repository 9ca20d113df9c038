"""The queue on disk. This package knows files and records, no tracker and no torch."""

from tracker_bridge.journal._position import Position

__all__ = ["Position"]
