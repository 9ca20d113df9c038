"""What the rules remember of one series table, and one sample as they see it. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import msgspec
import numpy as np
import numpy.typing as npt

from tracker_bridge.health._layers import DepthGroups
from tracker_bridge.health._window import Window
from tracker_bridge.records import SeriesTable, Step


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found, before context and advice are added. `layers`: the likeliest origin first."""

    rule: str
    severity: str
    title: str
    text: str
    layers: tuple[str, ...]
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One norm vector.

    `values` float64 [L]; `present` bool [L] or None for all; `total` finite unless a gradient was not; `log` float32
    [L + 1] of the values and the total (meaningless where `valid` is False); `valid` bool [L + 1] or None for all.
    """

    step: Step
    values: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_] | None
    total: float
    log: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_] | None
    zero: npt.NDArray[np.bool_] | None
    clip_coefficient: float | None
    max_norm: float | None
    post_clip: bool
    finite: bool
    """Whether every value (also those of absent layers) and the total are."""


@dataclass(frozen=True, slots=True)
class Layers:
    """What is derived from the table alone: names, sqrt(numel) [L], groups by depth, which slots are weights."""

    names: tuple[str, ...]
    root_numel: npt.NDArray[np.float64]
    groups: DepthGroups
    weights: npt.NDArray[np.bool_]


class Runs(msgspec.Struct):
    """How long each layer has been in a condition (exact zeros, no gradient, collapsed).

    All int32/bool [L]. `now`: samples in a row; `longest`: the longest such run that ended; `ever`: whether the layer
    was ever out of the condition; `told`: whether the present run was reported.
    """

    now: Any
    longest: Any
    ever: Any
    told: Any
    live: bool = False
    """Whether any layer is in the condition; spares the arithmetic while none is."""

    @classmethod
    def empty(cls, layers: int) -> Runs:
        """No layer in the condition."""
        return cls(
            np.zeros(layers, dtype=np.int32),
            np.zeros(layers, dtype=np.int32),
            np.zeros(layers, dtype=np.bool_),
            np.zeros(layers, dtype=np.bool_),
        )

    def update(self, inside: Any, outside: Any) -> None:
        """`inside`, `outside` bool [L]; a layer in neither keeps its run (nothing was learned about it)."""
        ended = outside & (self.now > 0)
        if ended.any():
            np.maximum(self.longest, self.now, out=self.longest, where=ended)
            self.now[ended] = 0
            self.told[ended] = False
        self.ever |= outside
        self.now += inside
        self.live = bool(self.now.any())


class Clipping(msgspec.Struct):
    """The last clip coefficients (a ring of floats) and what the script clips at."""

    coefficients: list[float] = msgspec.field(default_factory=list)
    at: int = 0
    count: int = 0
    max_norm: Union[float, None] = None
    unclipped: int = 0
    saturated: bool = False
    lost: bool = False


class Skips(msgspec.Struct):
    """Overflow-skipped steps: in a row, and a bit for each of the last 64 (newest lowest)."""

    in_a_row: int = 0
    history: int = 0
    succeeded: bool = False
    storm: bool = False


class TableState(msgspec.Struct):
    """All that the rules remember of one table. Its size does not depend on the number of steps."""

    table: SeriesTable
    window: Window
    zeros: Runs
    absent: Runs
    low: Runs
    high: Any
    """float32 [L + 1]: a log norm above this is a spike."""
    lone: Any
    floor: Any
    """float32 [L]: a log norm below this has collapsed."""
    clipping: Clipping = msgspec.field(default_factory=Clipping)
    skips: Skips = msgspec.field(default_factory=Skips)
    early: Any = None
    """float32 [L + 1], the median log norms of the first 20 samples; None until then."""
    held: Any = None
    """float64 [L], each layer's last value, where a vector holds only some layers (`SeriesTable.partial`)."""
    lost: tuple[str, ...] = ()
    """Layers of the table before that this one lacks, until told."""
    samples: int = 0
    """Norm vectors seen, also those that no window holds."""
    armed: bool = False
    """Whether the thresholds are computed."""
    silent: int = 0
    """Samples in a row in which every gradient was zero."""
    infected: bool = False
    """Whether the last sample was non-finite."""
    exploding: bool = False
    vanished_at: Union[int, None] = None
    """The sample at which gradients were last found vanished."""

    @classmethod
    def empty(cls, table: SeriesTable, window: int) -> TableState:
        """Nothing remembered yet."""
        count = len(table.names)
        far = np.full(count + 1, np.inf, dtype=np.float32)
        return cls(
            table,
            Window.empty(count + 1, window),
            Runs.empty(count),
            Runs.empty(count),
            Runs.empty(count),
            far,
            far.copy(),
            -far[:count],
        )
