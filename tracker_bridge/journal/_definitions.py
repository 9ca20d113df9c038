"""Records that later ones depend on, merged: what a reader must know to interpret a journal from its middle on."""

from __future__ import annotations

from typing import Any

from tracker_bridge.records import AnyRecord, Params, RunStarted, SeriesTable, Snapshot, Tags, merge_params

DEFINING_TAGS = frozenset({1, 2, 3, 5, 12})
"""Wire tags of RunStarted, Params, Tags, SeriesTable and Snapshot (the second byte of a payload)."""


class Definitions:
    """`params` merged and nested, `tags` as they are now, `tables` by their number."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.tags: dict[str, str | None] = {}
        self.tables: dict[int, SeriesTable] = {}

    def apply(self, record: AnyRecord) -> None:
        """Take in one record; those that define nothing are ignored."""
        if isinstance(record, Params):
            merge_params(self.params, record.params)
        elif isinstance(record, Tags):
            self.tags = {tag: value for tag, value in self.tags.items() if tag not in record.remove} | record.add
        elif isinstance(record, RunStarted):
            # Each attempt names its own tables; without this, a run resumed a hundred times would restate them all.
            self.tables = {}
        elif isinstance(record, SeriesTable):
            self.tables[record.table] = record
        elif isinstance(record, Snapshot):
            merge_params(self.params, record.params)
            self.tags = dict(record.tags)
            self.tables.update({table.table: table for table in record.tables})

    def snapshot(self, time_ns: int) -> Snapshot | None:
        """Everything in one record; None if nothing was defined yet."""
        if not (self.params or self.tags or self.tables):
            return None
        return Snapshot(time_ns, self.params, self.tags, tuple(self.tables.values()))
