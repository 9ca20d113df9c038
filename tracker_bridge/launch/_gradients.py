"""Every optimizer of the script is watched from its first step on, as the configuration's `gradients` section says.

A run of the script's takes the norms; if it never begins one, a run is begun here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_bridge.compat import _core
from tracker_bridge.compat._watching import OptimizerWatch
from tracker_bridge.run import Run, current, init

if TYPE_CHECKING:
    from torch.optim import Optimizer

_watch: OptimizerWatch | None = None
_own: Run | None = None


def watch_all() -> None:
    """Begin to look for optimizers. Called once, when torch's optimizers have been imported."""
    global _watch
    if _watch is None:
        _watch = OptimizerWatch(_run_of)
        _watch.install()


def watching() -> bool:
    """Whether the launcher watches gradients in this process."""
    return _watch is not None


def _run_of(_optimizer: Optimizer) -> Run | None:
    global _own
    found = _core.current_run() or current()
    if found is None and _own is None and not _core.any_begun():
        found = _own = init()
    return found or _own
