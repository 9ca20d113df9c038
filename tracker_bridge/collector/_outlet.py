"""Where measurements go: the tables that name their slots, and the sinks that take them.

A sink's exception is a fault like any other; nothing here raises. Knows nothing of tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tracker_bridge.collector._histograms import GradientHistogram
from tracker_bridge.collector._names import full_numel
from tracker_bridge.collector._norms import GradientNorms
from tracker_bridge.collector._select import Choice
from tracker_bridge.records import SeriesTable


class Outlet:
    """The sinks of one collector. `partial`: each step measures some of the slots of a table."""

    def __init__(
        self,
        sink: Callable[[GradientNorms], object] | None,
        histogram_sink: Callable[[GradientHistogram], object] | None,
        group_by: Callable[[str], str] | None,
        norm_type: float,
        partial: bool,
        fault: Callable[[Exception], None],
    ) -> None:
        self._sink, self._histogram_sink, self._group_by = sink, histogram_sink, group_by
        self._norm_type, self._partial, self._fault = norm_type, partial, fault
        self._tables: dict[tuple[object, ...], SeriesTable] = {}

    @property
    def takes_histograms(self) -> bool:
        """Whether anybody wants them."""
        return self._histogram_sink is not None

    def table(self, scope: str, chosen: Sequence[Choice], blocks: tuple[str, ...]) -> SeriesTable:
        """The one table object for these slots."""
        names = tuple(choice.parameter.name for choice in chosen)
        numel = tuple(full_numel(choice.parameter.parameter) for choice in chosen)
        return self.table_of("gradients", scope, names, numel, blocks)

    def beside(self, table: SeriesTable, kind: str) -> SeriesTable:
        """The table of the same slots for another kind of values."""
        return self.table_of(kind, table.scope, table.names, table.numel, table.block_prefixes)

    def table_of(
        self, kind: str, scope: str, names: tuple[str, ...], numel: tuple[int, ...], blocks: tuple[str, ...]
    ) -> SeriesTable:
        """The one table object for these slots and this kind of values."""
        key = (kind, scope, names, numel, blocks)
        if key not in self._tables:
            group_by = self._group_by
            self._tables[key] = SeriesTable(
                time_ns=time.time_ns(),
                table=-1,
                kind=kind,
                names=names,
                numel=numel,
                norm_type=self._norm_type,
                groups={} if group_by is None else {"custom": tuple(str(group_by(name)) for name in names)},
                block_prefixes=blocks,
                scope=scope,
                partial=self._partial and kind not in ("activations", "activation_gradients"),
            )
        return self._tables[key]

    def give(self, norms: GradientNorms) -> None:
        """Hand on the norms of one step."""
        if self._sink is not None:
            try:
                self._sink(norms)
            except Exception as error:
                self._fault(error)

    def give_histogram(self, histogram: GradientHistogram) -> None:
        """Hand on one layer's histogram."""
        if self._histogram_sink is not None:
            try:
                self._histogram_sink(histogram)
            except Exception as error:
                self._fault(error)
