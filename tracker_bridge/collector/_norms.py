"""What one collected step holds, on its way to the host: from measured tensors to the numbers of a record.

`finish` is the whole arithmetic after the device (unscaling, undoing a clip, totals), on numpy arrays. Nothing here
touches a gradient or launches device work; reading a value may wait for the device, asking `is_ready` never does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tracker_bridge.collector._device import HostCopy
from tracker_bridge.records import NormVector, SeriesTable, Step, pack_mask, pack_values

Float64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_SAFE = 1e-290  # a sum of squares above it has lost nothing to underflow

CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grads_with_norm_: coefficient = max_norm / (total_norm + 1e-6), at most 1


@dataclass(frozen=True, slots=True)
class Clip:
    """How the script clipped. `total` is the norm it clipped by; `undo`: the values were measured after it."""

    total: HostCopy
    max_norm: float
    undo: bool


class Measurement(msgspec.Struct, frozen=True):
    """Everything known about one step, part of it perhaps still on a device.

    `values` [L] holds what was measured on the host; `waiting` are positions in it and numbers on their way.
    `picks` are slots, where they are in another vector, and that vector on its way (the norms that a clip computed).
    `powers` are sums over processes on their way: positions [k], and a vector as `reduce_norms` returns it.
    `scales` multiplied the gradients when they were measured, `found_inf` says that the optimizer skips the step.
    `differs` are flags: not 0 if the script changed the gradients after backward.
    """

    values: Float64
    present: Mask
    norm_type: float
    waiting: tuple[tuple[npt.NDArray[np.intp], HostCopy], ...] = ()
    picks: tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], HostCopy], ...] = ()
    powers: tuple[tuple[npt.NDArray[np.intp], HostCopy], ...] = ()
    scales: tuple[HostCopy, ...] = ()
    found_inf: HostCopy | None = None
    clip: Clip | None = None
    post_clip: bool = False
    differs: tuple[HostCopy, ...] = ()
    skipped: bool = False
    partial: bool = False

    def but(self, **changes: object) -> Measurement:
        """The same with other fields."""
        return msgspec.structs.replace(self, **changes)

    def finished(self) -> Finished:
        """All numbers. Waits for what is on its way."""
        return finish(self)

    def copies(self) -> list[HostCopy]:
        """Everything that is on its way."""
        found = [copy for _, copy in (*self.waiting, *self.powers)]
        found += [copy for _, _, copy in self.picks]
        found += self.scales
        found += self.differs
        if self.found_inf is not None:
            found.append(self.found_inf)
        if self.clip is not None:
            found.append(self.clip.total)
        return found


class Finished(msgspec.Struct, frozen=True):
    """The numbers of one step, final. `values` [L] are before clipping unless `post_clip`."""

    values: Float64
    present: Mask
    total: float | None
    skipped: bool
    clip_coefficient: float | None
    post_clip: bool
    max_norm: float | None
    failed: bool = False


class Pending(Protocol):
    """Numbers of one step that are perhaps still on their way."""

    def copies(self) -> list[HostCopy]:
        """Everything that is on its way."""

    def finished(self) -> Finished:
        """All numbers. Waits for what is on its way."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measurement over another, slot by slot: how large an update is beside its parameter."""

    over: Measurement
    under: Measurement

    def copies(self) -> list[HostCopy]:
        """Everything that is on its way."""
        return self.over.copies() + self.under.copies()

    def finished(self) -> Finished:
        """All numbers: 0 for a skipped step, absent over a parameter that is 0 (a new bias), which has no ratio."""
        over, under = finish(self.over), finish(self.under)
        present = over.present & under.present & (under.values != 0.0)
        values = np.divide(over.values, under.values, out=np.zeros_like(over.values), where=present)
        total = over.total / under.total if over.total is not None and under.total else None
        if over.skipped:
            values, total = np.zeros_like(values), 0.0
        return msgspec.structs.replace(over, values=values, present=present, total=total)


@dataclass(frozen=True, slots=True)
class ZeroFraction:
    """The share of elements that are exactly zero, from counts of those that are not. `numel` is float64 [L]."""

    nonzero: Measurement
    numel: Float64

    def copies(self) -> list[HostCopy]:
        """Everything that is on its way."""
        return self.nonzero.copies()

    def finished(self) -> Finished:
        """All numbers; the total is the share among all elements."""
        counted = finish(self.nonzero)
        values = 1.0 - counted.values / np.maximum(self.numel, 1.0)
        elements = float(self.numel[counted.present].sum())
        total = None if counted.total is None or not elements else 1.0 - counted.total / elements
        return msgspec.structs.replace(counted, values=values, total=total)


class GradientNorms:
    """Norms of one step, by layer. Reading a value may wait for the device; the object itself never blocks training.

    `step` is the number of the optimizer step, `time_ns` when it was measured, `table` names the slots (the same
    object as long as the same layers are measured; its `table` number is -1 until a writer gives it one).
    """

    __slots__ = ("_finished", "_measurement", "step", "table", "time_ns")

    def __init__(self, step: Step, time_ns: int, table: SeriesTable, measurement: Pending) -> None:
        self.step = step
        self.time_ns = time_ns
        self.table = table
        self._measurement: Pending | None = measurement
        self._finished: Finished | None = None

    @property
    def kind(self) -> str:
        """What was measured: `gradients`, `parameters`, `activations`, ..."""
        return self.table.kind

    def is_ready(self) -> bool:
        """Whether all values have reached the host. Never waits."""
        return self._measurement is None or all(copy.is_ready() for copy in self._measurement.copies())

    @property
    def layers(self) -> Mapping[str, float]:
        """Clean name -> norm before clipping; a layer without a gradient is missing, not zero."""
        done = self._finish()
        return {
            name: value
            for name, value, there in zip(self.table.names, done.values.tolist(), done.present.tolist(), strict=True)
            if there
        }

    @property
    def values(self) -> Float64:
        """float64 [L] in the order of `table.names`; meaningless where not `present`."""
        return self._finish().values

    @property
    def present(self) -> Mask:
        """Bool [L]: which layers had a gradient and were measured at this step."""
        return self._finish().present

    @property
    def total(self) -> float | None:
        """The norm over all that was measured together: the clip's total if the script clips, else over `layers`.

        None where only some of the layers were measured at this step (`rotate`).
        """
        return self._finish().total

    @property
    def skipped(self) -> bool:
        """Whether the optimizer skipped this step because a gradient scaler found an overflow."""
        return self._finish().skipped

    @property
    def clip_coefficient(self) -> float | None:
        """What clipping multiplied the gradients by (1.0: nothing), None: not clipped, or not known."""
        return self._finish().clip_coefficient

    @property
    def post_clip(self) -> bool:
        """Whether the values were measured after the script changed the gradients in a way that is not known."""
        return self._finish().post_clip

    @property
    def max_norm(self) -> float | None:
        """What the script clips to, None: not clipped, or not known."""
        return self._finish().max_norm

    @property
    def failed(self) -> bool:
        """Whether some process could not measure; what is summed over processes is absent then, on all of them."""
        return self._finish().failed

    def to_record(self, table: int) -> NormVector:
        """The record to write, under the number that the writer gave to `self.table`. Waits if not ready."""
        done = self._finish()
        return NormVector(
            time_ns=self.time_ns,
            step=self.step,
            table=table,
            values=pack_values(done.values),
            present=pack_mask(done.present),
            total=done.total,
            skipped=done.skipped,
            clip_coefficient=done.clip_coefficient,
            post_clip=done.post_clip,
            max_norm=done.max_norm,
        )

    def _finish(self) -> Finished:
        if self._finished is None:
            assert self._measurement is not None
            self._finished = self._measurement.finished()
            self._measurement = None
        return self._finished

    def __repr__(self) -> str:
        return f"<GradientNorms {self.kind} step={self.step} layers={len(self.table.names)} ready={self.is_ready()}>"


def finish(m: Measurement) -> Finished:
    """All numbers of a step from what was measured. Waits for what is on its way."""
    values, present, failed = _gathered(m)
    scale = math.prod(float(copy.values()[0]) for copy in m.scales)
    if m.scales:
        values = values / scale
    total: float | None
    coefficient: float | None = None
    if m.clip is None:
        total = None if m.partial else combined(values if present.all() else values[present], m.norm_type)
    else:
        raw = float(m.clip.total.values()[0])
        coefficient = clip_coefficient(raw, m.clip.max_norm)
        total = raw / scale
        if m.clip.undo and coefficient == 0.0:
            # Every finite gradient became 0 and every infinite one NaN: what was finite is lost, what was not is known.
            present = present & np.isnan(values)
        elif m.clip.undo and coefficient != 1.0:
            values = values / coefficient
    skipped = m.skipped or (m.found_inf is not None and bool(m.found_inf.values().sum() != 0.0))
    post_clip = m.post_clip or any(bool(copy.values()[0]) for copy in m.differs)
    return Finished(
        values, present, total, skipped, coefficient, post_clip, m.clip.max_norm if m.clip else None, failed
    )


def combined(values: Float64, norm_type: float) -> float:
    """The norm of a concatenation from the norms of its pieces; 0.0 for none."""
    if values.size == 0:
        return 0.0
    if norm_type == 0.0:
        return float(values.sum())
    if norm_type == 2.0:
        squares = float(np.vdot(values, values))
        if _SAFE < squares < math.inf:
            return math.sqrt(squares)
    peak = float(np.max(np.abs(values)))
    if not math.isfinite(peak) or peak == 0.0 or norm_type == math.inf:
        return peak
    return float(peak * np.sum((values / peak) ** norm_type) ** (1.0 / norm_type))


def clip_coefficient(total: float, max_norm: float) -> float:
    """What `torch.nn.utils.clip_grads_with_norm_` multiplies by; NaN for a NaN total, and for inf / inf."""
    if math.isinf(total) and math.isinf(max_norm):
        return math.nan
    coefficient = max_norm / (total + CLIP_EPSILON)
    return coefficient if math.isnan(coefficient) else min(1.0, coefficient)


def _gathered(m: Measurement) -> tuple[Float64, Mask, bool]:
    """`values` and `present` with everything that was on its way filled in."""
    if not m.waiting and not m.picks and not m.powers:
        return m.values, m.present, False
    values, present, failed = m.values.copy(), m.present.copy(), False
    for positions, copy in m.waiting:
        values[positions] = copy.values()
    for positions, sources, copy in m.picks:
        values[positions] = copy.values()[sources]
    for positions, copy in m.powers:
        numbers, count = copy.values(), len(positions)
        infinite = m.norm_type == math.inf
        with np.errstate(all="ignore"):
            values[positions] = numbers[:count] if infinite else numbers[:count] ** (1.0 / (m.norm_type or 1.0))
        if infinite:
            values[positions[numbers[count : 2 * count] > 0]] = math.nan
        present[positions] = numbers[-1 - count : -1] > 0
        if numbers[-1] > 0:
            present[positions], failed = False, True
    return values, present, failed
