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
_BLOCK = 1 << 15

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
        readers = [np.load(piece, mmap_mode="r") for piece in self._pieces]
        at = [0] * len(readers)
        while True:
            open_readers = [index for index, reader in enumerate(readers) if at[index] < len(reader)]
            if not open_readers:
                return
            blocks = {index: readers[index][at[index] : at[index] + _BLOCK] for index in open_readers}
            # Up to the smallest last key of the blocks, nothing smaller can still come.
            cut = min(_key(block[-1]) for block in blocks.values())
            parts = []
            for index, block in blocks.items():
                taken = _not_above(block, cut)
                parts.append(np.array(block[:taken]))
                at[index] += taken
            merged = np.concatenate(parts)
            yield merged[_order(merged)]

    def _take(self) -> Points:
        points = np.concatenate(self._held) if self._held else np.empty(0, dtype=_POINT)
        self._held, self._count = [], 0
        return points[_order(points)]

    def _spill(self) -> None:
        path = Path(self._folder.name, f"{len(self._pieces):06d}.npy")
        np.save(path, self._take())
        self._pieces.append(path)

    def _records(self, points: Points) -> Iterator[Metrics]:
        if not len(points):
            return
        time, step, micro = points["time"], points["step"], points["micro"]
        starts = np.flatnonzero((np.diff(time) != 0) | (np.diff(step) != 0) | (np.diff(micro) != 0)) + 1
        lows = [0, *starts.tolist()]
        names = [self._names[number] for number in points["name"].tolist()]
        values = points["value"].tolist()
        keys = zip(time[lows].tolist(), step[lows].tolist(), micro[lows].tolist(), strict=True)
        for low, high, (time_ns, whole, part) in zip(lows, [*starts.tolist(), len(points)], keys, strict=True):
            at: Step = (whole * _MICRO + part) / _MICRO if part else whole
            row: dict[str, float] = {}
            for name, value in zip(names[low:high], values[low:high], strict=True):
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
