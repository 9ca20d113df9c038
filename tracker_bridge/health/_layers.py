"""What a series table says about the network: depth order, groups of like layers, readable names. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracker_bridge.records import SeriesTable

_NUMBER = re.compile(r"\d+")
_LEAST_GROUP = 4
_LEAST_NUMEL = 1


@dataclass(frozen=True, slots=True)
class DepthGroups:
    """Groups of like layers in depth order, laid out for `np.add.reduceat`.

    `members` int [M]: slots, group after group; `starts` int [G]: where each group begins in `members`; `weights`
    float64 [M]: a member's weight in its group's least-squares slope; `sizes` int [G]; `sxx` float64 [G].
    """

    members: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    weights: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.intp]
    sxx: npt.NDArray[np.float64]

    def fit(self, values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """`values` float64 [L] by slot -> (rise of the fitted line from first to last, correlation), each [G]."""
        if not len(self.starts):
            empty = np.zeros(0)
            return empty, empty
        y = values[self.members]
        slope = np.add.reduceat(self.weights * y, self.starts)
        mean = np.add.reduceat(y, self.starts) / self.sizes
        syy = np.add.reduceat((y - np.repeat(mean, self.sizes)) ** 2, self.starts)
        correlation = slope * np.sqrt(self.sxx / np.maximum(syy, 1e-30))
        return slope * (self.sizes - 1), correlation

    def group(self, index: int) -> npt.NDArray[np.intp]:
        """The slots of one group, in depth order."""
        start = self.starts[index]
        return self.members[start : start + self.sizes[index]]


def is_bias(name: str) -> bool:
    """Whether a parameter's name says that it is a bias or a shift."""
    last = name.rpartition(".")[2]
    return last == "bias" or last.startswith("bias_") or last.endswith("_bias") or last == "beta"


def depth_groups(table: SeriesTable) -> DepthGroups:
    """Slots whose names differ in numbers only, in depth order; all weights together if there is no such group.

    Layers of one kind are compared with each other because a transformer's biases, norms and matrices differ by
    orders of magnitude in any healthy run.
    """
    by_mask: dict[str, list[int]] = {}
    for slot, name in enumerate(table.names):
        by_mask.setdefault(_NUMBER.sub("#", name), []).append(slot)
    groups = [slots for slots in by_mask.values() if len(slots) >= _LEAST_GROUP]
    if not groups:
        weights = [slot for slot, name in enumerate(table.names) if not is_bias(name)]
        groups = [weights] if len(weights) >= _LEAST_GROUP else []
    sizes = np.array([len(group) for group in groups], dtype=np.intp)
    members = np.array([slot for group in groups for slot in group], dtype=np.intp)
    centred = [np.arange(size) - (size - 1) / 2 for size in sizes]
    sxx = np.array([float((x * x).sum()) for x in centred])
    slope_weights = [x / s for x, s in zip(centred, sxx, strict=True)]
    return DepthGroups(
        members=members,
        starts=np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.intp) if groups else np.zeros(0, dtype=np.intp),
        weights=np.concatenate(slope_weights) if groups else np.zeros(0),
        sizes=sizes,
        sxx=sxx,
    )


def root_numel(table: SeriesTable) -> npt.NDArray[np.float64]:
    """sqrt(numel) of each slot, float64 [L]; what a norm is divided by for the RMS of its elements."""
    numel = np.ones(len(table.names))
    numel[: len(table.numel)] = table.numel[: len(table.names)]
    return np.sqrt(np.maximum(numel, _LEAST_NUMEL))


def weight_slots(table: SeriesTable) -> npt.NDArray[np.bool_]:
    """Which slots are no biases, bool [L]."""
    return np.array([not is_bias(name) for name in table.names], dtype=np.bool_)


def span(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """`a, b, c and 5 more`."""
    shown = ", ".join(names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"
