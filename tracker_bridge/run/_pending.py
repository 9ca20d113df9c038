"""Records whose values are still on an accelerator, or in a sum over processes: kept in order, appended on arrival.

Nothing here waits except `complete_within`, which `flush` and `close` use. A script that hangs must still show its last
completed step, so while something is pending a daemon thread looks for arrivals; a script whose values are on the CPU
of one process never starts it. A device or process that fails costs the records that waited for it, never an exception.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tracker_bridge.records import AnyRecord, Metrics, Step

_LOOK = 0.5
# Seconds between two looks of the thread.
_PAUSE = 0.001
# Seconds between two looks of who waits.
_MOST = 4096
# Beyond so many the oldest is waited for: the device is that far behind, and memory is bounded.


class PendingRecord(Protocol):
    """A record in the making."""

    def is_ready(self) -> bool:
        """Whether `record` would not wait."""

    def record(self) -> AnyRecord:
        """The record; waits for the device if it must."""


class PendingRecords:
    """A queue of records in the making; `append` gets each when it is complete, in the order in which they came.

    `lost` is told why a record cannot be made.
    """

    def __init__(self, append: Callable[[AnyRecord], None], lost: Callable[[Exception], None]) -> None:
        self._append = append
        self._lost = lost
        self._waiting: deque[PendingRecord] = deque()
        # Reentrant, because a signal handler may log while its thread is in here.
        self._lock = threading.RLock()
        self._looker: threading.Thread | None = None
        # Free once the looking thread is to end. Ctrl-C may interrupt `stop`, and an `Event` would stay locked.
        self._stopped = threading.Lock()
        self._stopped.acquire()

    def add(self, pending: PendingRecord) -> None:
        """Take a record in the making, after those that are waiting."""
        with self._lock:
            self._waiting.append(pending)
            if len(self._waiting) > _MOST:
                self._take()
        self.complete()
        if self._waiting and self._looker is None:
            self._looker = threading.Thread(target=self._look, name="tracker_bridge-pending", daemon=True)
            self._looker.start()

    def add_scalars(self, time_ns: int, step: Step, values: Mapping[str, Any]) -> None:
        """Begin to copy 0-d tensors to the host and take the `Metrics` that they will make, one for each device."""
        by_device: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            by_device.setdefault(str(value.device), {})[name] = value
        for group in by_device.values():
            self.add(_Scalars(time_ns, step, group))

    @property
    def waits(self) -> bool:
        """Whether something is on its way, which what comes now is to wait for."""
        if self._looker is None:  # nothing ever was
            return False
        with self._lock:  # also while the last of it is appended
            return bool(self._waiting)

    def complete(self) -> bool:
        """Append what has arrived; whether that was all."""
        with self._lock:
            while self._waiting and self._has_arrived(self._waiting[0]):
                self._take()
            return not self._waiting

    def complete_within(self, seconds: float | None) -> bool:
        """Wait at most `seconds` (None: as long as it takes) for all to arrive; whether it has."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self.complete():
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(_PAUSE)
        return True

    def give_up(self) -> None:
        """Lose what has not arrived."""
        with self._lock:
            while self._waiting:
                self._waiting.popleft()
                self._lost(
                    TimeoutError("it was still on a device, or in a sum over processes, when the run was closed")
                )

    def forget_after_fork(self) -> None:
        """In a forked child: what is on its way is the parent's, and nobody frees a lock that its thread held."""
        self._lock = threading.RLock()
        self._waiting.clear()

    def _has_arrived(self, pending: PendingRecord) -> bool:
        try:
            return pending.is_ready()
        except Exception:  # a device that has failed; `record` says how
            return True

    def _take(self) -> None:
        """Append the oldest; waits for it if it has not arrived."""
        pending = self._waiting.popleft()
        try:
            record = pending.record()
        except Exception as error:
            self._lost(error)
        else:
            self._append(record)

    def _look(self) -> None:
        while not self._stopped.acquire(timeout=_LOOK):
            if self._waiting:
                self.complete()

    def stop(self) -> None:
        """End the looking thread."""
        with contextlib.suppress(RuntimeError):  # stopped before
            self._stopped.release()


class _Scalars:
    """Scalars of one logging call on their way to the host."""

    def __init__(self, time_ns: int, step: Step, values: Mapping[str, Any]) -> None:
        from tracker_bridge.collector import copy_to_host

        self._time_ns, self._step, self._names = time_ns, step, tuple(values)
        self._copy = copy_to_host(tuple(values.values()))

    def is_ready(self) -> bool:
        return bool(self._copy.is_ready())

    def record(self) -> Metrics:
        return Metrics(self._time_ns, self._step, dict(zip(self._names, self._copy.values().tolist(), strict=True)))
