"""A thread that does what may wait for the disk, so that an append makes no system call.

Each system call gives the interpreter lock away, and beside a busy Python thread the training thread would then wait
5 ms (the switch interval) to get it back, a dozen times for each new segment.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, Union

from tracker_bridge.journal._segment import Segment
from tracker_bridge.journal._store import NoRoomError, SegmentStore

PATIENCE = 0.5
"""Seconds that an append waits at most for a segment which is not ready; it is dropped after that."""
_STOP_PATIENCE = 1.0


class SlowDiskError(Exception):
    """The next segment is still being made."""


class Prepares(Protocol):
    """What a writer needs: segments made ahead of time if possible, and put away."""

    def order(self, number: int, size: int, least: int, keep: int) -> None:
        """Say that the segment will be taken."""

    def take(self, number: int, size: int, least: int, keep: int) -> Segment:
        """The segment, which has not begun. Raises `SlowDiskError`, `NoRoomError`, `OSError`."""

    def retire(self, segment: Segment, end: int) -> None:
        """Put a sealed segment away."""

    def stop(self) -> None:
        """End when everything is done."""


class PatientPreparer:
    """Makes and puts away segments in the caller's thread: for an import, which may wait for the disk.

    A thread that is started and waited for costs a small run more than all that is written of it.
    """

    def __init__(self, store: SegmentStore) -> None:
        self._store = store

    def order(self, number: int, size: int, least: int, keep: int) -> None:
        """Nothing: it is made when it is taken."""

    def take(self, number: int, size: int, least: int, keep: int) -> Segment:
        """A new segment. Raises `NoRoomError`, `OSError`."""
        return self._store.make(number, size, least, keep)

    def retire(self, segment: Segment, end: int) -> None:
        """Put a sealed segment away."""
        self._store.retire(segment, end)

    def stop(self) -> None:
        """Nothing is left to do."""


class _Order:
    """One segment to be made: `segment` or `error` is set when it is done.

    The script's thread asks, waits and takes, and Ctrl-C may come between any two steps of that; what it has done then
    can be done once more. A `threading.Event` would not do: it waits in Python, under a lock that an interrupt in the
    wrong place leaves locked for ever.
    """

    __slots__ = ("_done", "_waits", "asked", "error", "keep", "least", "number", "segment", "size", "started")

    def __init__(self, number: int, size: int, least: int, keep: int) -> None:
        self.number = number
        self.size = size
        self.least = least
        self.keep = keep
        self.segment: Segment | None = None
        self.error: Union[OSError, NoRoomError, None] = None
        self.asked = self.started = False
        self._done = False
        self._waits = threading.Lock()
        self._waits.acquire()

    def finish(self) -> None:
        """It is done. Called once."""
        self._done = True
        self._waits.release()

    def wait(self, seconds: float) -> bool:
        """Whether it is done within `seconds`."""
        return self._done or self._waits.acquire(timeout=seconds)


class Preparer:
    """Makes the next segment ahead of time and puts the last one away. Used under the writer's lock."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._order: _Order | None = None
        self._patience = PATIENCE
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = threading.Thread(
            target=_work, args=(self._jobs,), name="tracker_bridge-journal", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or the interpreter is going down: the caller does the work
            self._thread = None

    def order(self, number: int, size: int, least: int, keep: int) -> None:
        """Begin to make the segment (see `SegmentStore.make`); nothing if one is ordered already."""
        order = self._order
        if order is None:
            order = self._order = _Order(number, size, least, keep)
        if not order.asked:
            self._do(lambda: _make(self._store, order))
            order.asked = True

    def take(self, number: int, size: int, least: int, keep: int) -> Segment:
        """The ordered segment, or one ordered now; it has not begun. Waits `PATIENCE` at most, once for each order.

        Raises `SlowDiskError`, `NoRoomError`, `OSError`; call it again later.
        """
        while True:
            fresh = self._order is None
            self.order(number, size, least, keep)
            order = self._order
            assert order is not None
            if not order.wait(self._patience):
                self._patience = 0.0
                raise SlowDiskError
            self._patience = PATIENCE
            self._order = None
            if order.segment is not None and order.segment.size >= least:
                return order.segment
            # What was ordered ahead of time may be too small, and what failed then may work now.
            self._discard(order)
            if fresh:
                raise order.error or SlowDiskError

    def retire(self, segment: Segment, end: int) -> None:
        """Put a sealed segment away."""
        self._do(lambda: self._store.retire(segment, end))

    def stop(self) -> None:
        """End the thread when it has done everything; waits a second at most."""
        if self._order is not None:
            order, self._order = self._order, None
            self._discard(order)
        if self._thread is not None:
            self._jobs.put(None)
            if self._thread is not threading.current_thread():  # a forgotten writer may be collected in any thread
                self._thread.join(_STOP_PATIENCE)

    def _discard(self, order: _Order) -> None:
        def job() -> None:
            if order.segment is not None:
                self._store.discard(order.segment)

        self._do(job)

    def _do(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
        else:
            self._jobs.put(job)


def _make(store: SegmentStore, order: _Order) -> None:
    if order.started:  # Ctrl-C came between asking and the note of it
        return
    order.started = True
    try:
        order.segment = store.make(order.number, order.size, order.least, order.keep)
        order.segment.warm()
    except (OSError, NoRoomError) as error:
        order.error = error
    finally:
        order.finish()


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        with contextlib.suppress(Exception):  # one bad job must not end the thread that the next segment comes from
            job()
