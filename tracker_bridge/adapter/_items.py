"""What an adapter receives. `sequence` is the journal's number of the record behind an item.

It is the same when an item is sent again after a crash, and grows from item to item (several items can share one).
Names are already the tracker's. Times are nanoseconds since the epoch, of when the value was logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from tracker_bridge.records import Step


@dataclass(frozen=True, slots=True)
class Row:
    """Several series at one step: `values` is float64 [N], `names` has N entries.

    The `names` tuple is the same object in each row with the same series, so an adapter may cache by its identity
    (hold a reference while it does). `late`: some series here already has a larger step (`Capabilities.steps`).
    """

    sequence: int
    time_ns: int
    step: Step
    names: tuple[str, ...]
    values: npt.NDArray[np.float64]
    late: bool = False


@dataclass(frozen=True, slots=True)
class ParamsItem:
    """Nested plain values, only what is new or changed since this adapter last stored it."""

    sequence: int
    time_ns: int
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TagsItem:
    """`add`: tag -> None, or its value. `remove`: tags. `now` is the whole set after this change."""

    sequence: int
    time_ns: int
    add: Mapping[str, str | None]
    remove: tuple[str, ...]
    now: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class TextItem:
    """A text under a name."""

    sequence: int
    time_ns: int
    name: str
    text: str
    step: Step | None


@dataclass(frozen=True, slots=True)
class ArtifactItem:
    """A file that exists (else the courier has dropped and counted it)."""

    sequence: int
    time_ns: int
    name: str
    path: Path
    step: Step | None
    media_type: str


@dataclass(frozen=True, slots=True)
class HistogramItem:
    """`edges` float64 [B + 1], `counts` float64 [B]."""

    sequence: int
    time_ns: int
    name: str
    step: Step
    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AlertItem:
    """A health alert, to be shown in the tracker's own form; its `health/<rule>` point arrives as a Row besides."""

    sequence: int
    time_ns: int
    rule: str
    step: Step
    severity: str
    title: str
    text: str
    layers: tuple[str, ...]


Item = Union[Row, ParamsItem, TagsItem, TextItem, ArtifactItem, HistogramItem, AlertItem]


@dataclass(frozen=True, slots=True)
class Batch:
    """Items in the order in which they were logged, within the limits of `capabilities`.

    `renamed`: tracker's name -> original, of series whose name had to be changed (a mapping may repeat what an
    earlier batch had); an adapter keeps it where people who look at the tracker find it.
    """

    items: tuple[Item, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """Number of scalar points in all rows."""
        return sum(len(item.names) for item in self.items if isinstance(item, Row))
