"""What the adapter remembers beside W&B's logs. Pure.

Rows are numbered without gaps (`_step`), so after a crash the number of rows in W&B's own log tells how far it got.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from tracker_bridge.adapter import Ledger, Mark


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


class RowLedger(Ledger):
    """Counts the rows of all `segments`.

    `draft` is the open row as it was when `done` was true; it is superseded by the first of `marks`.
    """

    draft: Union[Draft, None] = None
    segments: list[Segment] = msgspec.field(default_factory=list)
    confirmed: bool = True
    """A server has everything in `segments`, or none is meant to."""
    missing: int = 0
    """Rows that a server will never have because their log is gone."""
    alerted: Mark = (-1, 0)

    def settle(self, count: int) -> bool:
        """As the base; where no new row was written, the draft still holds and so does what is in it."""
        reached = super().settle(count)
        if reached:
            self.draft = None
        elif self.draft is not None:
            self.done = max(self.done, self.draft.mark)
        return reached


def describe(row: Draft, number: int, axis: str, started_ns: int) -> dict[str, Any]:
    """The columns that W&B and the bridge add to a row: its number, when it was logged, its place on the axis."""
    times = {"_timestamp": row.time_ns / 1e9, "_runtime": max(0.0, (row.time_ns - started_ns) / 1e9), "_step": number}
    return times if row.step is None else {**times, axis: row.step}
