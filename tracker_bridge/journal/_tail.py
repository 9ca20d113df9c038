"""Where the next record goes: the few numbers that an append reads and changes.

`_native` holds the same class with a shortcut in C. Without it every append takes the way in Python, which does the
same in more steps.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from tracker_bridge._extensions import WANTED
from tracker_bridge.records import AnyRecord


class PythonTail:
    """The end of the current segment.

    `used`: where the next frame begins, in bytes. `sequence`: its record's. `limit`: where the quick ways must stop;
    0: at once. `busy`: an append is at work, so one that interrupts it may not touch any of this. `lock`: held while
    it changes.

    After a fault nothing is tried for a while: until `refuses_until` (as `time.monotonic()`) the shortcut drops what is
    no larger than `largest`, in bytes of the frame, and counts it.
    """

    __slots__ = ("busy", "largest", "limit", "lock", "refuses_until", "sequence", "used")

    append: Callable[[bytes], int] | None = None
    """The shortcut for what `encode` has made: the sequence of the record that it has written; -1 after it has changed
    nothing; -2 if it was dropped, and counted."""
    append_record: Callable[[AnyRecord], int] | None = None
    """The same for a record. Raises what `encode` raises."""

    def __init__(self, sequence: int, lock: RLock) -> None:
        self.sequence = sequence
        self.used = self.limit = 0
        self.busy = False
        self.lock = lock
        self.refuses_until = 0.0
        self.largest = 0

    def take_refused(self) -> int:
        """How many records the shortcut has dropped since the last call."""
        return 0

    def aim(self, view: memoryview | None, fd: int) -> None:
        """What the shortcut writes to: a mapped segment, a file that is not mapped (`view` None), or -1: nothing.

        Only while `limit` is 0. A view may not be released before the next call.
        """


if TYPE_CHECKING or not WANTED:
    Tail = PythonTail
else:
    try:
        from tracker_bridge.journal._native import Tail
    except ImportError:  # no compiler when it was installed
        Tail = PythonTail
