"""tracker_bridge: gradient norms and metrics to any tracker, through one durable asynchronous queue."""

from tracker_bridge._version import __version__

__all__ = ["__version__"]
