"""For adapters whose tracker counts what it has stored: each item exactly once, even after a crash between two commits.

Before records are handed to the tracker, a ledger beside its own files says which item each of them completes; after a
crash the tracker's count tells how far it got. Does no I/O but for the ledger's one file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tracker_bridge.adapter._items import Item

Mark = tuple[int, int]
"""A journal sequence, and how many items with that sequence have been stored (from 1)."""


class Ledger(msgspec.Struct):
    """What is stored and what is intended. `marks[i]` holds once the tracker has `base + i + 1` records.

    Subclasses append what else they must remember, with defaults: an older ledger stays readable.
    """

    done: Mark = (-1, 0)
    base: int = 0
    marks: list[Mark] = []

    def settle(self, count: int) -> bool:
        """Take over the marks that hold now that the tracker is known to have `count` records; False if none does."""
        reached = min(count - self.base, len(self.marks))
        if reached > 0:
            self.done = max(self.done, self.marks[reached - 1])
        self.base, self.marks = max(self.base, count), []
        return reached > 0


LedgerT = TypeVar("LedgerT", bound=Ledger)


class LedgerFile(Generic[LedgerT]):
    """The ledger on disk; replaced in one step."""

    def __init__(self, path: Path, kind: type[LedgerT]) -> None:
        self._path = path
        self._kind = kind

    def load(self) -> LedgerT:
        """The stored ledger; a fresh one if there is none or it is damaged."""
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=self._kind)
        except (OSError, msgspec.DecodeError):
            return self._kind()

    def save(self, ledger: LedgerT) -> None:
        """Store it. Raises `OSError`."""
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
