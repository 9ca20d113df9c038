"""Norm vectors of a journal as one table: a row for each step, a column for each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracker_bridge.records import AnyRecord, NormVector, SeriesTable, Snapshot, Step, unpack_mask, unpack_values

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GradientNormTable:
    """Norms of S steps and L layers, rows in the order in which they were logged.

    `steps` is int64 [S], float64 if the script counted in fractions. `names` has L clean layer names. `values` is
    float64 [S, L]; where a layer was absent it is NaN and `present` (bool [S, L]) is False, so a NaN that is present
    was measured. `total` float64 [S] is the norm over everything that was measured together. `skipped` bool [S]: the
    optimizer did not step. `clip_coefficient` and `max_norm` float64 [S], NaN where unknown. `post_clip` bool [S]:
    measured after clipping by an unknown coefficient. `times_ns` int64 [S], nanoseconds since the epoch.
    """

    steps: npt.NDArray[np.int64] | Floats
    names: tuple[str, ...]
    values: Floats
    present: Bools
    total: Floats
    skipped: Bools
    clip_coefficient: Floats
    max_norm: Floats
    post_clip: Bools
    times_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(slots=True)
class _Columns:
    """The columns that one table's slots belong to."""

    table: SeriesTable
    indices: npt.NDArray[np.intp]
    members: frozenset[int]


@dataclass(slots=True)
class _Row:
    step: Step
    parts: list[tuple[_Columns, NormVector]] = field(default_factory=list)


def norm_table(records: Iterable[AnyRecord], kind: str) -> GradientNormTable:
    """All norm vectors whose table is of `kind`. Columns of several tables are merged by name.

    Vectors of one step whose tables share no name (two watched models) are one row; a step that was logged twice
    (a resumed run that went back) is two.
    """
    column_of: dict[str, int] = {}
    tables: dict[int, _Columns] = {}
    rows: list[_Row] = []
    last_of_step: dict[Step, _Row] = {}
    for record in records:
        if isinstance(record, (SeriesTable, Snapshot)):
            for table in record.tables if isinstance(record, Snapshot) else (record,):
                if table.kind != kind:
                    tables.pop(table.table, None)
                elif table.table not in tables or tables[table.table].table != table:
                    indices = [column_of.setdefault(name, len(column_of)) for name in table.names]
                    tables[table.table] = _Columns(table, np.array(indices, dtype=np.intp), frozenset(indices))
        elif isinstance(record, NormVector) and (columns := tables.get(record.table)) is not None:
            row = last_of_step.get(record.step)
            if row is None or not all(columns.members.isdisjoint(other.members) for other, _ in row.parts):
                row = last_of_step[record.step] = _Row(record.step)
                rows.append(row)
            row.parts.append((columns, record))
    return _fill(rows, tuple(column_of))


def _fill(rows: list[_Row], names: tuple[str, ...]) -> GradientNormTable:
    shape = (len(rows), len(names))
    values = np.full(shape, np.nan)
    present = np.zeros(shape, dtype=np.bool_)
    totals = np.full(len(rows), np.nan)
    clip = np.full(len(rows), np.nan)
    max_norm = np.full(len(rows), np.nan)
    for index, row in enumerate(rows):
        parts: list[float] = []
        for columns, vector in row.parts:
            there = unpack_mask(vector.present, len(columns.indices))
            measured = unpack_values(vector.values)
            values[index, columns.indices[there]] = measured[there]
            present[index, columns.indices[there]] = True
            norm_type = columns.table.norm_type
            parts.append(combined(measured[there], norm_type) if vector.total is None else vector.total)
            if vector.clip_coefficient is not None:
                clip[index] = vector.clip_coefficient
            if vector.max_norm is not None:
                max_norm[index] = vector.max_norm
        kinds = {columns.table.norm_type for columns, _ in row.parts}
        if len(parts) == 1:
            totals[index] = parts[0]
        elif len(kinds) == 1:
            totals[index] = combined(np.array(parts), kinds.pop())
    steps: npt.NDArray[np.int64] | Floats = np.array([row.step for row in rows], dtype=np.float64)
    if not any(isinstance(row.step, float) for row in rows):
        steps = np.array([row.step for row in rows], dtype=np.int64)
    return GradientNormTable(
        steps=steps,
        names=names,
        values=values,
        present=present,
        total=totals,
        skipped=np.array([any(vector.skipped for _, vector in row.parts) for row in rows], dtype=np.bool_),
        clip_coefficient=clip,
        max_norm=max_norm,
        post_clip=np.array([any(vector.post_clip for _, vector in row.parts) for row in rows], dtype=np.bool_),
        times_ns=np.array([row.parts[0][1].time_ns for row in rows], dtype=np.int64),
    )


def combined(norms: Floats, norm_type: float) -> float:
    """The norm of the concatenation of tensors with these p-norms; 0.0 of none."""
    if norms.size == 0:
        return 0.0
    largest = float(np.max(norms))
    if math.isinf(norm_type) or largest == 0.0 or not math.isfinite(largest):
        return largest
    # Scaled by the largest, because the square of a large finite norm is infinite.
    return largest * math.pow(float(np.sum((norms / largest) ** norm_type)), 1.0 / norm_type)
