"""`tracker-bridge run`: an unmodified script in a process in which trackers' names mean `tracker_bridge.compat`.

The command replaces itself by `python [flags] script.py args...` (exec: same process, same standard streams), told by a
`sitecustomize` of its own, which removes every trace of itself, to alias the names before the script's first line. So
argv, `__main__`, exit status, signals, tracebacks and stdin are Python's own. Nothing here imports torch, or an SDK, or
anything heavier than the standard library before the script asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracker_bridge.launch._aliases import TRACKERS

if TYPE_CHECKING:
    from tracker_bridge.launch._command import launch

__all__ = ["TRACKERS", "launch"]


def __getattr__(name: str) -> Any:
    # The script's process needs the aliases, not the command.
    if name == "launch":
        from tracker_bridge.launch._command import launch

        return launch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
