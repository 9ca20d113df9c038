"""tracker_bridge: gradient norms and metrics to any tracker, through one durable asynchronous queue.

Importing this package imports neither torch, numpy nor a tracker's SDK; each name below is loaded when it is first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracker_bridge._version import __version__

if TYPE_CHECKING:
    from tracker_bridge.attaching import attach
    from tracker_bridge.config import Config, load_config
    from tracker_bridge.errors import BridgeError, ConfigError, UsageError
    from tracker_bridge.mirroring import mirror, unmirror
    from tracker_bridge.reader import GradientNormTable, RunReader, read
    from tracker_bridge.run import BackendDelivery, Delivery, Run, current, init

__all__ = [
    "BackendDelivery",
    "BridgeError",
    "Config",
    "ConfigError",
    "Delivery",
    "GradientNormTable",
    "Run",
    "RunReader",
    "UsageError",
    "__version__",
    "attach",
    "current",
    "init",
    "load_config",
    "mirror",
    "read",
    "unmirror",
]

_HOME = {
    "BackendDelivery": "run",
    "BridgeError": "errors",
    "Config": "config",
    "ConfigError": "errors",
    "Delivery": "run",
    "GradientNormTable": "reader",
    "Run": "run",
    "RunReader": "reader",
    "UsageError": "errors",
    "attach": "attaching",
    "current": "run",
    "init": "run",
    "load_config": "config",
    "mirror": "mirroring",
    "read": "reader",
    "unmirror": "mirroring",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
