"""`neptune_scale` without neptune-scale: `Run` and `NeptuneLoggingHandler`, leading to any configured backends.

Follows the API of neptune-scale 0.30. Carried: metrics with integer and fractional steps, configs, string series,
histograms, files, tags. In another form: previews (series `<name>/preview`), group tags (plain tags), histogram
densities (shares), forks (params). Not carried: console capture, callbacks. `projects.list_projects` raises.
"""

from __future__ import annotations

from typing import Any

from tracker_bridge.compat._core import missing
from tracker_bridge.compat.neptune_scale._handler import NeptuneLoggingHandler
from tracker_bridge.compat.neptune_scale._run import Run

__all__ = ["NeptuneLoggingHandler", "Run"]
__version__ = "0.30.0"
SUBMODULES = ("api", "api.run", "exceptions", "logging", "logging.logging_handler", "projects", "types")


def __getattr__(name: str) -> Any:
    return missing(__name__, "neptune_scale", name, ())
