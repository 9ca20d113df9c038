"""From the collector's norms to records: the sink that `Run.watch` gives to its collector.

Called on the training thread, possibly before the values have left the device; it reads no value itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tracker_bridge.records import AnyRecord, NormVector, SeriesTable
from tracker_bridge.run._pending import PendingRecord, PendingRecords
from tracker_bridge.run._watch_checks import check_options, warn_of_another_model, warn_of_nothing_to_measure

if TYPE_CHECKING:
    import torch

    from tracker_bridge.collector import GradientHistogram, GradientNormCollector
    from tracker_bridge.run._run import Run

GROUPINGS = ("parameter", "module", "block", "total")

_FROM_CONFIG = ("every_n_steps", "include", "exclude", "parts", "norm_type", "rotate")


class Norms(Protocol):
    """What the collector's sink gets (`tracker_bridge.collector.GradientNorms`)."""

    @property
    def time_ns(self) -> int:
        """When they were measured."""

    @property
    def table(self) -> SeriesTable:
        """The same object as long as the measured set is unchanged."""

    def is_ready(self) -> bool:
        """Whether the values are on the host."""

    def to_record(self, table: int) -> NormVector:
        """The record; waits for the device if it must."""


class Tables:
    """Numbers series tables: each is written once, before the first vector that refers to it."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._numbers: dict[tuple[int, str], tuple[int, SeriesTable]] = {}

    def number(self, table: SeriesTable, kind: str) -> tuple[int, SeriesTable | None]:
        """The table's number, and the table to write if it has none yet."""
        known = self._numbers.get((id(table), kind))
        if known is not None:
            return known[0], None
        number = self._next
        self._next += 1
        # The table itself is kept, so that its id cannot come to mean another one.
        self._numbers[id(table), kind] = (number, table)
        return number, msgspec.structs.replace(table, table=number, kind=kind)


class NormSink:
    """Appends one collector's norms to one run; `name` tells apart the models of one script."""

    def __init__(self, tables: Tables, pending: PendingRecords, append: Any, name: str, group_by: str) -> None:
        self._tables, self._pending, self._append = tables, pending, append
        self._name, self._group_by = name, group_by

    def __call__(self, norms: Norms) -> None:
        """Take the norms of one step."""
        table = norms.table
        kind = f"{table.kind}/{self._name}" if self._name else table.kind
        number, new = self._tables.number(table, kind)
        if new is not None:
            self._append(msgspec.structs.replace(new, time_ns=norms.time_ns, group_by=self._group_by))
        if norms.is_ready() and not self._pending.waits:
            self._append(norms.to_record(number))
        else:
            self._pending.add(_PendingNorms(norms, number))


class _PendingNorms(PendingRecord):
    def __init__(self, norms: Norms, table: int) -> None:
        self._norms, self._table = norms, table

    def is_ready(self) -> bool:
        return self._norms.is_ready()

    def record(self) -> AnyRecord:
        return self._norms.to_record(self._table)


class _PendingHistogram(PendingRecord):
    def __init__(self, histogram: GradientHistogram) -> None:
        self._histogram = histogram

    def is_ready(self) -> bool:
        return self._histogram.is_ready()

    def record(self) -> AnyRecord:
        return self._histogram.to_record()


def watch(
    run: Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, options: dict[str, Any]
) -> GradientNormCollector:
    """See `Run.watch`."""
    from tracker_bridge.collector import GradientNormCollector

    check_options(options, GradientNormCollector)
    given = dict(options)
    name = given.pop("name", None)
    scaler = given.pop("scaler", None)
    if given.pop("histograms", False):
        given["histogram_sink"] = lambda histogram: run._pending.add(_PendingHistogram(histogram))
    if run._gradients is not None:
        for key in _FROM_CONFIG:
            given.setdefault(key, getattr(run._gradients, key))
    group_by = given.get("group_by")
    if isinstance(group_by, str):
        if group_by not in GROUPINGS:
            raise ValueError(f"group_by must be one of {', '.join(GROUPINGS)} or a callable, not {group_by!r}")
        del given["group_by"]
    grouping = group_by if isinstance(group_by, str) else "custom" if group_by else ""
    free = _free_name(run, name, model)
    sink = NormSink(run._tables, run._pending, run._append, free, grouping)
    collector = GradientNormCollector(model, sink=sink, **given)
    try:
        if run._next_collector_step is not None and "step" not in given:
            collector.step = run._next_collector_step
        warn_of_nothing_to_measure(model)
        if optimizer is not None:
            warn_of_another_model(model, collector.attach(optimizer, scaler).optimizers)
    except BaseException:  # misuse, or a warning that the script has made an error
        collector.detach()
        raise
    run._kinds.add(free)
    return collector


def _free_name(run: Run, name: str | None, model: torch.nn.Module) -> str:
    wanted = name if name is not None else ("" if not run._kinds else type(model).__name__.lower())
    free, count = wanted, 2
    while free in run._kinds:
        free, count = f"{wanted}{count}", count + 1
    return free
