"""What happens to live runs when the process ends without `close()`, and in forked children. The only global state."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracker_bridge.run._run import Run

_live: set[Run] = set()
# Strong: a run that its script has dropped without closing is still to be ended, as what it is, when the script ends.
_order: list[weakref.ref[Run]] = []
_installed = False


def register(run: Run) -> None:
    """Close `run` at exit unless it was closed before. It becomes the current run."""
    global _installed
    if not _installed:
        _installed = True
        atexit.register(_close_all)
        os.register_at_fork(after_in_child=_after_fork)
        # A thread-mode courier must finish before SDKs' own exit handlers, which were registered later than ours,
        # tear them down; the interpreter runs these callbacks before all of atexit.
        early = getattr(threading, "_register_atexit", None)
        if early is not None:
            early(_close_threaded)
    _live.add(run)
    _order.append(weakref.ref(run))


def unregister(run: Run) -> None:
    """The run is closed."""
    _live.discard(run)
    _order[:] = [reference for reference in _order if reference() is not None and reference() is not run]


def current() -> Run | None:
    """The run that was begun last and is not closed."""
    for reference in reversed(_order):
        run = reference()
        if run is not None and run in _live:
            return run
    return None


def exit_status() -> str:
    """How this process ends: `failed` after an uncaught exception, `killed` after Ctrl-C, else `finished`.

    At a prompt and in a notebook an exception ends nothing, so there it is always `finished`.
    """
    if hasattr(sys, "ps1"):
        return "finished"
    # The interpreter sets these when it prints an uncaught exception (sys.last_value; last_exc from 3.12 on).
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return "finished"
    return "killed" if isinstance(error, KeyboardInterrupt) else "failed"


def _close_all() -> None:
    _close(list(_live))


def _close_threaded() -> None:
    _close([run for run in _live if run._delivers_on_thread])


def _close(runs: Iterable[Run]) -> None:
    interrupted = False
    for run in runs:
        interrupted = run._close_at_exit(hurry=interrupted) or interrupted


def _after_fork() -> None:
    for run in list(_live):
        run._forget_after_fork()
    _live.clear()
    _order.clear()
