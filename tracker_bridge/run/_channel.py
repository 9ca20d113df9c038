"""The way from a run to its delivery: a process, or a thread of the script. Told to hurry, to end, to give up.

Nothing here raises into training or waits, but `finish`, whose time the caller gives.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tracker_bridge.adapter import Adapter
from tracker_bridge.delivery import DeliveryProcess, Host, Lifecycle, Plan
from tracker_bridge.rundir import LockBusyError, RunPaths

RESTARTS = 5
"""A delivery process that ends while the run goes on is started again so many times."""

_HANG_GRACE = 0.8
# After the time for delivery is over the delivery process ends by itself within this; then it is killed.


class Channel(Protocol):
    """How a run talks to whoever delivers it."""

    def look(self) -> None:
        """Called about once a second from logging calls: see that delivery is alive."""

    def nudge(self) -> None:
        """Ask for delivery now."""

    def finish(self, seconds: float) -> None:
        """The run has ended: wait at most `seconds` (and a second for clearing up) for delivery to end."""

    def cut_short(self) -> None:
        """`finish` was interrupted: end delivery now, within a second."""

    def forget_after_fork(self) -> None:
        """In a forked child: let go of what belongs to the parent."""


class NoChannel:
    """For a run without backends, and on ranks that do not write."""

    def look(self) -> None:
        """Nothing to see."""

    def nudge(self) -> None:
        """Nobody to hurry."""

    def finish(self, seconds: float) -> None:
        """Nothing to wait for."""

    def cut_short(self) -> None:
        """Nothing to end."""

    def forget_after_fork(self) -> None:
        """Nothing to let go."""


class ProcessChannel:
    """Delivery in a process of its own. Raises `OSError` when the first one cannot be started."""

    def __init__(self, paths: RunPaths, plan: Plan, cwd: Path) -> None:
        self._paths, self._plan, self._cwd = paths, plan, cwd
        self._restarts = 0
        self._process = DeliveryProcess(paths.root, plan, cwd=cwd)

    def look(self) -> None:
        """Start the delivery process again if it is gone."""
        if not self._process.is_alive() and self._restarts < RESTARTS:
            self._restarts += 1
            with contextlib.suppress(OSError):
                self._process = DeliveryProcess(self._paths.root, self._plan, cwd=self._cwd)

    def nudge(self) -> None:
        """Ask for delivery now."""
        self._process.nudge()

    def finish(self, seconds: float) -> None:
        """Let the process deliver the rest; kill it and its helpers when the time is over."""
        self.look()
        self._process.end(seconds)
        if not self._process.wait(seconds + _HANG_GRACE):
            self._process.kill()

    def cut_short(self) -> None:
        """Let the process save how far it is; kill it if it does not end."""
        self._process.end(0)
        if not self._process.wait(_HANG_GRACE):
            self._process.kill()

    def forget_after_fork(self) -> None:
        """Drop the pipe to the parent's delivery process."""
        self._process.forget_after_fork()


class ThreadChannel:
    """Delivery on a daemon thread of the script, for run objects that live in it (`adapters`, by backend name)."""

    def __init__(self, paths: RunPaths, plan: Plan, adapters: Mapping[str, Adapter[Any]] | None = None) -> None:
        self._lifecycle = Lifecycle()
        host = Host(paths, plan, self._lifecycle)

        def serve() -> None:
            with contextlib.suppress(LockBusyError, OSError):
                host.serve(watch=None, adapters=adapters)

        self._thread = threading.Thread(target=serve, name="tracker_bridge-delivery", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """A thread does not go away."""

    def nudge(self) -> None:
        """Ask for delivery now."""
        self._lifecycle.nudge()

    def finish(self, seconds: float) -> None:
        """Let the thread deliver the rest; an adapter that hangs is left behind on its daemon thread."""
        self._lifecycle.end(None)
        self._lifecycle.limit(seconds)
        self._thread.join(seconds + _HANG_GRACE)

    def cut_short(self) -> None:
        """Let the thread save how far it is; one that hangs is left behind."""
        self._lifecycle.end(None)
        self._lifecycle.limit(0)
        self._thread.join(_HANG_GRACE)

    def forget_after_fork(self) -> None:
        """Threads do not exist in a forked child."""


def wait_until(done: Callable[[], bool], seconds: float | None, pause: float = 0.02) -> bool:
    """Poll `done()` until it is true or `seconds` are over (None: for ever)."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while not done():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)
    return True
