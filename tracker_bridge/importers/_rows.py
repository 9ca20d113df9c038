"""Columns of points to `Metrics`: neighbours with the same time and step become one record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from tracker_bridge.records import Metrics, Step


def rows(
    times: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64] | npt.NDArray[np.float64],
    names: list[str],
    values: npt.NDArray[np.float64],
) -> Iterator[Metrics]:
    """Records of the points, in their order; all arguments are [N]. A name repeated within a row starts another."""
    count = len(names)
    if count == 0:
        return iter(())
    starts = np.flatnonzero((np.diff(times) != 0) | (np.diff(steps) != 0)) + 1
    if len(starts) == count - 1:
        points = zip(times.tolist(), steps.tolist(), names, values.tolist(), strict=True)
        return (Metrics(time_ns, step, {name: value}) for time_ns, step, name, value in points)
    lows = np.concatenate(([0], starts))
    bounds = zip(lows.tolist(), [*starts.tolist(), count], times[lows].tolist(), steps[lows].tolist(), strict=True)
    return _joined(bounds, names, values.tolist())


def _joined(bounds: Iterable[tuple[int, int, int, Step]], names: list[str], numbers: list[float]) -> Iterator[Metrics]:
    for low, high, time_ns, step in bounds:
        row = dict(zip(names[low:high], numbers[low:high], strict=True))
        if len(row) == high - low:
            yield Metrics(time_ns, step, row)
        else:
            yield from _split(time_ns, step, names[low:high], numbers[low:high])


def _split(time_ns: int, step: Step, names: list[str], values: list[float]) -> Iterator[Metrics]:
    row: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if name in row:
            yield Metrics(time_ns, step, row)
            row = {}
        row[name] = value
    yield Metrics(time_ns, step, row)
