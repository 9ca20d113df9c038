"""The total norm of each record of a stream. Remembers the tables' norm types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracker_bridge.records import AnyRecord, NormVector, SeriesTable, Snapshot, unpack_mask, unpack_values


def norm_of() -> Callable[[AnyRecord], float | None]:
    """A function to call with each record in turn: its total gradient norm, None for what is no such record."""
    norm_types: dict[int, float] = {}

    def total(record: AnyRecord) -> float | None:
        if isinstance(record, (SeriesTable, Snapshot)):
            for table in record.tables if isinstance(record, Snapshot) else (record,):
                if table.kind.partition("/")[0] == "gradients" and not table.partial:
                    norm_types[table.table] = table.norm_type
        elif isinstance(record, NormVector):
            if record.total is not None:
                return record.total
            norm_type = norm_types.get(record.table)
            if norm_type is not None:
                values = unpack_values(record.values)
                return float(np.linalg.norm(values[unpack_mask(record.present, len(values))], norm_type))
        return None

    return total
