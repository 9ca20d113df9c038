"""Grouping of norms: which group each slot of a series table belongs to, and the norm of each group.

Pure functions over names and arrays. The norm of a group is the norm of the concatenation of its members, so
grouping afterwards loses nothing: for the p-norm, (sum of |x|^p)^(1/p) of the members' norms; for inf, the largest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracker_bridge.records import SeriesTable

_INDEX = re.compile(r"(?:^|\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Grouping:
    """`names` has G entries; `order` [L] sorts the slots by group and `starts` [G] is where each group begins."""

    names: tuple[str, ...]
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]


def group_slots(table: SeriesTable, group_by: str) -> Grouping:
    """Group the slots of `table` by `parameter`, `module`, `block`, `total` or a grouping stored in the table.

    Groups are in the order of their first member. An unknown `group_by` falls back to `parameter`: a custom grouping
    exists only in tables whose script passed a callable.
    """
    if group_by == "module":
        labels = tuple(name.rpartition(".")[0] or name for name in table.names)
    elif group_by == "block":
        prefixes = frozenset(table.block_prefixes)
        labels = tuple(_block_of(name, prefixes) for name in table.names)
    elif group_by == "total":
        labels = ()
    else:
        labels = table.groups.get(group_by, table.names)
    if not labels:
        empty = np.empty(0, dtype=np.intp)
        return Grouping((), empty, empty)
    numbers: dict[str, int] = {}
    slots = np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), dtype=np.intp, count=len(labels))
    order = np.argsort(slots, kind="stable")
    starts = np.searchsorted(slots[order], np.arange(len(numbers)))
    return Grouping(tuple(numbers), order, starts)


def group_norms(
    values: npt.NDArray[np.float64], present: npt.NDArray[np.bool_], grouping: Grouping, norm_type: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Norms [G] of the groups and which groups have a present member [G], from norms [L]."""
    if len(grouping.names) == len(values):
        return values[grouping.order], present[grouping.order]
    if not grouping.names:
        return np.empty(0), np.empty(0, dtype=np.bool_)
    sorted_present = present[grouping.order]
    sorted_values = np.where(sorted_present, values[grouping.order], 0.0)
    some = np.logical_or.reduceat(sorted_present, grouping.starts)
    largest = np.maximum.reduceat(sorted_values, grouping.starts)
    if np.isinf(norm_type):
        return largest, some
    # Dividing by the largest member first keeps powers of huge and tiny norms inside float64.
    scale = np.where(np.isfinite(largest) & (largest > 0), largest, 1.0)
    members = np.diff(np.append(grouping.starts, len(sorted_values)))
    with np.errstate(over="ignore", invalid="ignore"):
        powers = (sorted_values / np.repeat(scale, members)) ** norm_type
        return scale * np.add.reduceat(powers, grouping.starts) ** (1.0 / norm_type), some


def total_norm(values: npt.NDArray[np.float64], present: npt.NDArray[np.bool_], norm_type: float) -> float:
    """The norm over all present slots; 0.0 if there is none."""
    measured = values[present]
    if not len(measured):
        return 0.0
    largest = float(measured.max())
    if np.isinf(norm_type) or not np.isfinite(largest) or largest == 0.0:
        return largest
    return float(largest * np.sum((measured / largest) ** norm_type) ** (1.0 / norm_type))


def _block_of(name: str, prefixes: frozenset[str]) -> str:
    # The outermost repeated layer: in a mixture of experts that is the transformer layer, not the expert.
    parts = name.split(".")
    for end in range(1, len(parts)):
        prefix = ".".join(parts[:end])
        if prefix in prefixes:
            return prefix
    if not prefixes:
        index = _INDEX.search(name)
        if index is not None and index.end() < len(name):
            return name[: index.end()]
    return name.rpartition(".")[0] or name
