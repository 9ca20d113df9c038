"""Which items are already in W&B's log, even after a crash between its write and ours.

Rows are numbered without gaps (`_step`). Before rows are handed over, the ledger says which item each of them
completes; after a crash the number of rows in W&B's own log tells how far it got. Pure but for one file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Union

import msgspec

from tracker_bridge.adapter import Item

Mark = tuple[int, int]
"""A journal sequence, and how many items with that sequence have been stored (from 1)."""


class Draft(msgspec.Struct):
    """A row that may still grow: everything logged at one step. `cells`: column -> its JSON; `size` in bytes."""

    step: Union[int, float, None]
    time_ns: int
    mark: Mark
    cells: dict[str, str] = {}
    size: int = 0


class Segment(msgspec.Struct):
    """One `.wandb` file of this run and the number of its first row."""

    path: str
    first: int


class Ledger(msgspec.Struct):
    """What is on disk beside W&B's own files. `marks[i]` holds once row `base + i` is in the log.

    `draft` is the open row as it was when `done` was true; it is superseded by the first of `marks`.
    """

    done: Mark = (-1, 0)
    draft: Draft | None = None
    base: int = 0
    marks: list[Mark] = []
    segments: list[Segment] = []
    confirmed: bool = True
    """A server has everything in `segments`, or none is meant to."""
    missing: int = 0
    """Rows that a server will never have because their log is gone."""
    alerted: Mark = (-1, 0)

    def settle(self, rows: int) -> None:
        """Take over what holds now that the logs are known to have `rows` rows."""
        reached = min(rows - self.base, len(self.marks))
        if reached > 0:
            self.done = max(self.done, self.marks[reached - 1])
            self.draft = None
        elif self.draft is not None:
            self.done = max(self.done, self.draft.mark)
        self.base, self.marks = max(self.base, rows), []


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


def describe(row: Draft, number: int, axis: str, started_ns: int) -> dict[str, Any]:
    """The columns that W&B and the bridge add to a row: its number, when it was logged, its place on the axis."""
    times = {"_timestamp": row.time_ns / 1e9, "_runtime": max(0.0, (row.time_ns - started_ns) / 1e9), "_step": number}
    return times if row.step is None else {**times, axis: row.step}
