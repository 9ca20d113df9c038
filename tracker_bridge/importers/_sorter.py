"""Points in any order to rows in the order in which they were logged, with memory that does not grow with their number.

Sources that keep each series apart (exports, MLflow) are read series by series; a journal wants rows by time. Sorted
pieces go to temporary files and are merged block by block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from tracker_bridge.records import Metrics, Step

_MICRO = 1_000_000
_POINT = np.dtype([("time", "<i8"), ("step", "<i8"), ("micro", "<i4"), ("name", "<i4"), ("value", "<f8")])
_PIECE = 1 << 20
_MERGED = 1 << 17  # points held while merging, shared by all pieces
_LEAST_BLOCK = 256
_ROWS = 4096

Points = npt.NDArray[np.void]


class PointSorter:
    """Collects points with `add` and then gives them back by (time, step); a context manager over its files.

    Points that are equal in both keep the order of their `add`s. A step is whole plus millionths, so fractions are
    exact. Of a series' points with equal time and step all are kept.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tracker-bridge-")
        self._pieces: list[Path] = []
        self._held: list[Points] = []
        self._count = 0
        self._ids: dict[str, int] = {}
        self._names: list[str] = []

    def __enter__(self) -> PointSorter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._folder.cleanup()

    def name_id(self, name: str) -> int:
        """The number that stands for `name` in `add`."""
        number = self._ids.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number

    def add(
        self,
        times: npt.NDArray[np.int64],
        steps: npt.NDArray[np.int64],
        micros: npt.NDArray[np.int64] | int,
        names: npt.NDArray[np.int64] | int,
        values: npt.NDArray[np.float64],
    ) -> None:
        """Points as arrays [N]: nanoseconds, whole steps, millionths of a step, ids of names, values."""
        points = np.empty(len(times), dtype=_POINT)
        points["time"], points["step"], points["micro"] = times, steps, micros
        points["name"], points["value"] = names, values
        self._held.append(points)
        self._count += len(points)
        if self._count >= _PIECE:
            self._spill()

    def rows(self) -> Iterator[Metrics]:
        """All points as records, sorted; neighbours with the same time and step are one record."""
        for block in self._sorted():
            yield from self._records(block)

    def _sorted(self) -> Iterator[Points]:
        if not self._pieces:
            yield self._take()
            return
        if self._held:
            self._spill()
        # Read, not mapped: pages of a mapping would count as memory of the process.
        size = max(_LEAST_BLOCK, _MERGED // len(self._pieces))
        at = [0] * len(self._pieces)
        blocks: dict[int, Points] = {}
        while True:
            for index, piece in enumerate(self._pieces):
                if index not in blocks:
                    block = np.fromfile(piece, dtype=_POINT, count=size, offset=at[index] * _POINT.itemsize)
                    if len(block):
                        blocks[index] = block
            if not blocks:
                return
            # Up to the smallest last key of the blocks, nothing smaller can still come.
            cut = min(_key(block[-1]) for block in blocks.values())
            parts = []
            for index, block in list(blocks.items()):
                taken = _not_above(block, cut)
                parts.append(block[:taken])
                at[index] += taken
                if taken == len(block):
                    del blocks[index]
                else:
                    blocks[index] = block[taken:]
            merged = np.concatenate(parts)
            yield merged[_order(merged)]

    def _take(self) -> Points:
        points = np.concatenate(self._held) if self._held else np.empty(0, dtype=_POINT)
        self._held, self._count = [], 0
        return points[_order(points)]

    def _spill(self) -> None:
        path = Path(self._folder.name, f"{len(self._pieces):06d}")
        self._take().tofile(path)
        self._pieces.append(path)

    def _records(self, points: Points) -> Iterator[Metrics]:
        if not len(points):
            return
        time, step, micro = points["time"], points["step"], points["micro"]
        starts = np.flatnonzero((np.diff(time) != 0) | (np.diff(step) != 0) | (np.diff(micro) != 0)) + 1
        lows = np.concatenate(([0], starts))
        highs = np.append(starts, len(points))
        # As Python objects a point is many times as large, so only some rows at a time become that.
        for first in range(0, len(lows), _ROWS):
            part = slice(int(lows[first]), int(highs[min(first + _ROWS, len(highs)) - 1]))
            names = [self._names[number] for number in points["name"][part].tolist()]
            values = points["value"][part].tolist()
            group = slice(first, first + _ROWS)
            at = lows[group]
            keys = zip(time[at].tolist(), step[at].tolist(), micro[at].tolist(), strict=True)
            bounds = zip((at - part.start).tolist(), (highs[group] - part.start).tolist(), keys, strict=True)
            for low, high, (time_ns, whole, fraction) in bounds:
                yield from _rows(time_ns, whole, fraction, names[low:high], values[low:high])


def _rows(time_ns: int, whole: int, fraction: int, names: list[str], values: list[float]) -> Iterator[Metrics]:
    """One row; another one from where a name comes again."""
    at: Step = (whole * _MICRO + fraction) / _MICRO if fraction else whole
    row: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if name in row:
            yield Metrics(time_ns, at, row)
            row = {}
        row[name] = value
    yield Metrics(time_ns, at, row)


def _order(points: Points) -> npt.NDArray[np.intp]:
    return np.lexsort((points["micro"], points["step"], points["time"]))


def _key(point: np.void) -> tuple[int, int, int]:
    return int(point["time"]), int(point["step"]), int(point["micro"])


def _not_above(block: Points, cut: tuple[int, int, int]) -> int:
    """How many points of a sorted block have a key of at most `cut`."""
    time, step, micro = block["time"], block["step"], block["micro"]
    below = (time < cut[0]) | ((time == cut[0]) & ((step < cut[1]) | ((step == cut[1]) & (micro <= cut[2]))))
    return int(below.sum())
