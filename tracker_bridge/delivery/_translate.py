"""From the journal's records to one backend's items: route, group, name, and fit to what the tracker can hold.

A translator sees every record of the journal in order and keeps the little state that needs (tables, params, tags,
last steps). It does no I/O and knows the tracker only by its `Capabilities`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Capabilities,
    HistogramItem,
    Item,
    NameMap,
    ParamsItem,
    Row,
    TagsItem,
    TextItem,
)
from tracker_bridge.delivery._group import Grouping, group_norms, group_slots, total_norm
from tracker_bridge.delivery._route import Route, SeriesFilter
from tracker_bridge.records import (
    Alert,
    AnyRecord,
    Artifact,
    Histogram,
    Metrics,
    NormVector,
    Params,
    SeriesTable,
    Snapshot,
    Step,
    Tags,
    Text,
    merge_params,
    unpack_mask,
    unpack_values,
)

NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY = 1.0, 2.0, 3.0
"""Values of the companion series `<name>/non_finite`."""

_UNGROUPED = ("update_ratio", "zero_fraction")

_MOST_COLUMNS = 4096
# A script that logs another set of names at every call must not grow this for ever.


class Definitions(msgspec.Struct):
    """What later records refer to. Being ahead of the cursor does no harm, so it is stored apart and rarely."""

    tables: dict[int, SeriesTable] = {}
    params: dict[str, Any] = {}
    tags: dict[str, str | None] = {}
    series: list[str] = []


class Progress(msgspec.Struct):
    """What changes with every batch and must move together with the cursor."""

    last_steps: bytes = b""
    buckets: dict[int, int] = {}


@dataclass(frozen=True, slots=True)
class _Columns:
    """The series of one kind of row: which slots are taken, their names for the tracker, their numbers."""

    taken: npt.NDArray[np.intp] | None
    names: tuple[str, ...]
    numbers: npt.NDArray[np.intp]


class Translator:
    """Translates for one backend. `dropped` counts the values that were left out on purpose, by reason."""

    def __init__(
        self,
        capabilities: Capabilities,
        route: Route,
        root: Path,
        definitions: Definitions | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._can = capabilities
        self._route = route
        self._root = root
        self._goes = SeriesFilter(route.include, route.exclude)
        self._name_map = NameMap(capabilities.names)
        self._columns: dict[Any, _Columns] = {}
        self._groupings: dict[int, Grouping] = {}
        self.dropped: Counter[str] = Counter()
        self.definitions = definitions or Definitions()
        self.definitions_changed = False
        self._numbers = {name: number for number, name in enumerate(self.definitions.series)}
        progress = progress or Progress()
        self._buckets = dict(progress.buckets)
        self._last_steps = np.full(max(64, 2 * len(self._numbers)), -np.inf)
        stored = np.frombuffer(progress.last_steps, dtype="<f8")
        self._last_steps[: len(stored)] = stored

    @property
    def progress(self) -> Progress:
        """The state that belongs to the cursor."""
        return Progress(self._last_steps[: len(self._numbers)].astype("<f8").tobytes(), dict(self._buckets))

    def take_renamed(self) -> Mapping[str, str]:
        """Tracker's name -> original, of series met since the last call whose name had to be changed."""
        return self._name_map.take_fresh()

    def __call__(self, sequence: int, record: AnyRecord) -> Iterator[Item]:
        """The items that `record` becomes here; none if it is not for this backend."""
        if isinstance(record, NormVector):
            yield from self._norms(sequence, record)
        elif isinstance(record, Metrics):
            yield from self._metrics(sequence, record.time_ns, record.step, record.values)
        elif isinstance(record, SeriesTable):
            self._define(record)
        elif isinstance(record, Params):
            yield from self._params(sequence, record.time_ns, record.params)
        elif isinstance(record, Tags):
            yield from self._tags(sequence, record)
        elif isinstance(record, Snapshot):
            yield from self._snapshot(sequence, record)
        elif isinstance(record, Text):
            yield TextItem(sequence, record.time_ns, self._rename(record.name), record.text, record.step)
        elif isinstance(record, Artifact):
            yield from self._artifact(sequence, record)
        elif isinstance(record, Histogram):
            yield from self._histogram(sequence, record)
        elif isinstance(record, Alert):
            yield from self._alert(sequence, record)

    def _define(self, table: SeriesTable) -> None:
        self.definitions.tables[table.table] = table
        self.definitions_changed = True

    def _norms(self, sequence: int, record: NormVector) -> Iterator[Item]:
        table = self.definitions.tables.get(record.table)
        if table is None:
            self.dropped["unknown_series_table"] += len(record.values) // 8
            return
        if self._route.every_n_steps > 1:
            bucket = int(record.step // self._route.every_n_steps)
            if self._buckets.get(record.table) == bucket:
                return
            self._buckets[record.table] = bucket
        grouping = self._groupings.get(record.table)
        if grouping is None:
            wanted = self._route.group_by or table.group_by or self._route.default_group_by
            # Ratios and shares are no norms, and one record of a partial table holds only some of a group's members.
            groupable = table.kind.partition("/")[0] not in _UNGROUPED and not table.partial
            group_by = wanted if groupable else "parameter"
            grouping = self._groupings[record.table] = group_slots(table, group_by)
        values = unpack_values(record.values)
        present = unpack_mask(record.present, len(values))
        norms, some = group_norms(values, present, grouping, table.norm_type)
        everywhere = bool(some.all())
        gradients = table.kind == "gradients" or table.kind.startswith("gradients/")
        extras = _extras(record, table, values, present) if gradients else {}
        key = (record.table, None if everywhere else some.tobytes(), tuple(extras))
        columns = self._columns.get(key)
        if columns is None:
            names = [f"{table.kind}/{name}" for name, here in zip(grouping.names, some, strict=True) if here]
            scope = f"{table.kind}/{table.scope}" if table.scope else table.kind
            names += [f"{scope}/{extra}" for extra in extras]
            columns = self._columns[key] = self._make_columns(tuple(names))
        if not everywhere:
            norms = norms[some]
        if extras:
            norms = np.concatenate([norms, list(extras.values())])
        yield from self._fit(sequence, record.time_ns, record.step, columns, norms)

    def _metrics(self, sequence: int, time_ns: int, step: Step, values: Mapping[str, float]) -> Iterator[Row]:
        key = tuple(values)
        columns = self._columns.get(key)
        if columns is None:
            columns = self._columns[key] = self._make_columns(key)
        array = np.fromiter(values.values(), dtype=np.float64, count=len(values))
        yield from self._fit(sequence, time_ns, step, columns, array)

    def _params(self, sequence: int, time_ns: int, params: Mapping[str, Any]) -> Iterator[ParamsItem]:
        news = merge_params(self.definitions.params, params)
        if news:
            self.definitions_changed = True
            yield ParamsItem(sequence, time_ns, news)

    def _tags(self, sequence: int, record: Tags) -> Iterator[TagsItem]:
        now = self.definitions.tags
        add = {tag: value for tag, value in record.add.items() if tag not in now or now[tag] != value}
        remove = tuple(tag for tag in record.remove if tag in now)
        if add or remove:
            now.update(add)
            for tag in remove:
                del now[tag]
            self.definitions_changed = True
            yield TagsItem(sequence, record.time_ns, add, remove, dict(now))

    def _snapshot(self, sequence: int, record: Snapshot) -> Iterator[Item]:
        for table in record.tables:
            if table.table not in self.definitions.tables:
                self._define(table)
        yield from self._params(sequence, record.time_ns, record.params)
        gone = tuple(tag for tag in self.definitions.tags if tag not in record.tags)
        yield from self._tags(sequence, Tags(record.time_ns, record.tags, gone))

    def _artifact(self, sequence: int, record: Artifact) -> Iterator[ArtifactItem]:
        path = self._root / record.path
        if path.is_file():
            name = self._rename(record.name)
            yield ArtifactItem(sequence, record.time_ns, name, path, record.step, record.media_type)
        else:
            self.dropped["artifact_missing"] += 1

    def _histogram(self, sequence: int, record: Histogram) -> Iterator[HistogramItem]:
        if not self._goes(record.name):
            return
        step = self._fit_step(record.step, 1)
        if step is not None:
            edges, counts = unpack_values(record.edges), unpack_values(record.counts)
            name = self._name_map(self._rename(record.name))
            yield HistogramItem(sequence, record.time_ns, name, step, edges, counts)

    def _alert(self, sequence: int, record: Alert) -> Iterator[Item]:
        yield AlertItem(
            sequence,
            record.time_ns,
            record.rule,
            record.step,
            record.severity,
            record.title,
            record.text,
            record.layers,
        )
        yield from self._metrics(sequence, record.time_ns, record.step, {f"health/{record.rule}": 1.0})

    def _make_columns(self, names: tuple[str, ...]) -> _Columns:
        if len(self._columns) >= _MOST_COLUMNS:
            self._columns.clear()
        taken = [slot for slot, name in enumerate(names) if self._goes(name)]
        renamed = [self._rename(names[slot]) for slot in taken]
        return _Columns(
            None if len(taken) == len(names) else np.array(taken, dtype=np.intp),
            tuple(map(self._name_map, renamed)),
            np.array([self._number(name) for name in renamed], dtype=np.intp),
        )

    def _rename(self, name: str) -> str:
        return self._route.prefix + self._route.rename.get(name, name)

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            self.definitions.series.append(name)
            self.definitions_changed = True
            if number >= len(self._last_steps):
                self._last_steps = np.concatenate([self._last_steps, np.full(len(self._last_steps), -np.inf)])
        return number

    def _fit(
        self, sequence: int, time_ns: int, step: Step, columns: _Columns, values: npt.NDArray[np.float64]
    ) -> Iterator[Row]:
        """Rows that the tracker can hold: its step rule first, then its rule for values that are not finite."""
        if columns.taken is not None:
            values = values[columns.taken]
        if not len(values):
            return
        fitted = self._fit_step(step, len(values))
        if fitted is None:
            return
        names = columns.names
        if self._can.steps != "any":
            last = self._last_steps[columns.numbers]
            behind = last >= fitted if self._can.steps == "increasing" else last > fitted
            if behind.any():
                if self._can.steps == "increasing":
                    self.dropped["step_not_increasing"] += int(behind.sum())
                else:
                    late_names = tuple(name for name, late in zip(names, behind, strict=True) if late)
                    late = Row(sequence, time_ns, fitted, late_names, values[behind], late=True)
                    yield from self._fit_values(late)
                ahead = ~behind
                if not ahead.any():
                    return
                names = tuple(name for name, kept in zip(names, ahead, strict=True) if kept)
                values = values[ahead]
                self._last_steps[columns.numbers[ahead]] = fitted
            else:
                self._last_steps[columns.numbers] = fitted
        yield from self._fit_values(Row(sequence, time_ns, fitted, names, values))

    def _fit_step(self, step: Step, count: int) -> Step | None:
        if isinstance(step, int) or self._can.step_type == "float":
            return step
        if step.is_integer():
            return int(step)
        self.dropped["fractional_step"] += count
        return None

    def _fit_values(self, row: Row) -> Iterator[Row]:
        if self._can.non_finite == "native":
            yield row
            return
        odd = ~np.isfinite(row.values) if self._can.non_finite == "none" else np.isinf(row.values)
        if not odd.any():
            yield row
            return
        plain = ~odd
        if plain.any():
            names = tuple(name for name, kept in zip(row.names, plain, strict=True) if kept)
            yield Row(row.sequence, row.time_ns, row.step, names, row.values[plain], row.late)
        kinds = row.values[odd]
        codes = np.where(np.isnan(kinds), NAN, np.where(kinds > 0, POSITIVE_INFINITY, NEGATIVE_INFINITY))
        companions = tuple(
            self._name_map(f"{name}/non_finite") for name, is_odd in zip(row.names, odd, strict=True) if is_odd
        )
        yield Row(row.sequence, row.time_ns, row.step, companions, codes, row.late)


def _extras(
    record: NormVector, table: SeriesTable, values: npt.NDArray[np.float64], present: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """The series about the whole: name -> value."""
    extras: dict[str, float] = {}
    if record.total is not None:
        extras["total_norm"] = record.total
    elif not table.partial:
        extras["total_norm"] = total_norm(values, present, table.norm_type)
    extras["skipped"] = float(record.skipped)
    extras["non_finite_layers"] = float(np.count_nonzero(present & ~np.isfinite(values)))
    if record.clip_coefficient is not None:
        extras["clip_coefficient"] = record.clip_coefficient
    if record.post_clip:
        extras["post_clip"] = 1.0
    return extras
