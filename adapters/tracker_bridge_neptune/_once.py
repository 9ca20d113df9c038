"""Which items are already in Neptune's database, even after a crash between its commit and ours.

Before operations are committed, the ledger says which item each of them completes. The database numbers its operations
itself and never reuses a number, so after a crash its counter tells how far the last commit got. Pure but for one file.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tracker_bridge.adapter import Item

Mark = tuple[int, int]
"""A journal sequence, and how many items with that sequence have been stored (from 1)."""


class Ledger(msgspec.Struct):
    """What is on disk beside the databases. `marks[i]` holds once the database has `base + i + 1` operations."""

    done: Mark = (-1, 0)
    database: str = ""
    base: int = 0
    marks: list[Mark] = []
    unsent: list[str] = []
    """Databases of earlier openings that may hold operations no server has."""
    last_steps: dict[str, float] = {}
    """Last step of each series that is not a metric (texts, histograms, files)."""
    kinds: dict[str, str] = {}
    """What each attribute is that is not a metric series: Neptune never lets an attribute change its type."""
    tags: list[str] = []
    clock_ns: int = 0
    sync_process: tuple[int, float] | None = None
    """Pid and creation time of the SDK's upload process."""

    def settle(self, operations: int) -> None:
        """Take over the marks that hold now that the database has had `operations` operations."""
        reached = min(operations - self.base, len(self.marks))
        if reached > 0:
            self.done = max(self.done, self.marks[reached - 1])
        self.base, self.marks = operations, []


class LedgerFile:
    """The ledger on disk; replaced in one step."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Ledger:
        """The stored ledger; a fresh one if there is none or it is damaged."""
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=Ledger)
        except (OSError, msgspec.DecodeError):
            return Ledger()

    def save(self, ledger: Ledger) -> None:
        """Store it."""
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.msgpack.encode(ledger))
        os.replace(temporary, self._path)


class Marker:
    """Gives each item its mark; an item that comes again (a retry, a divided batch) keeps the one it had."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Item, Mark]] = {}
        self._last: Mark = (-1, 0)

    def __call__(self, item: Item) -> Mark:
        """The item's mark."""
        known = self._known.get(id(item))
        if known is not None:
            return known[1]
        sequence, count = self._last
        self._last = (item.sequence, count + 1 if item.sequence == sequence else 1)
        self._known[id(item)] = (item, self._last)
        return self._last

    def forget(self) -> None:
        """No item given so far comes again."""
        self._known.clear()
