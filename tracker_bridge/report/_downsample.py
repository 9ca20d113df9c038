"""Fewer points without losing a spike: minimum and maximum of each bin, and norms as 16-bit codes. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint16]

ABSENT, ZERO, LEAST, MOST, INFINITE, NOT_A_NUMBER = 0, 1, 2, 65000, 65534, 65535
"""The meaning of a code; from `LEAST` to `MOST` it is linear in log10 of the norm."""


@dataclass(frozen=True, slots=True)
class Scale:
    """log10 of the norms at `LEAST` and at `MOST`."""

    low: float
    high: float


def bin_starts(count: int, bins: int) -> npt.NDArray[np.intp]:
    """Where each of at most `bins` bins of nearly equal size begins among `count` samples."""
    bins = max(1, min(count, bins))
    return np.floor(np.arange(bins) * count / bins).astype(np.intp)


def even_starts(count: int, bins: int) -> npt.NDArray[np.intp]:
    """The same with every bin but the last of one size, which a plotting library draws much faster as a map."""
    return np.arange(0, count, max(1, -(-count // max(1, bins))))


def scale_of(values: Floats) -> Scale:
    """The range of the positive finite values; one decade if there are none."""
    usable = values[np.isfinite(values) & (values > 0)]
    if not usable.size:
        return Scale(-1.0, 0.0)
    low, high = math.log10(float(usable.min())), math.log10(float(usable.max()))
    return Scale(low, high if high - low > 1e-6 else low + 1e-6)


def encode(values: Floats, present: npt.NDArray[np.bool_], scale: Scale) -> Codes:
    """Codes of norms; `present` marks what was measured. The error of a finite one is half a step of `scale`."""
    codes = np.full(values.shape, ABSENT, dtype=np.uint16)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log10(np.abs(values))
    position = (log - scale.low) / (scale.high - scale.low) * (MOST - LEAST) + LEAST
    finite = present & np.isfinite(values) & (values != 0)
    codes[finite] = np.clip(np.rint(position[finite]), LEAST, MOST).astype(np.uint16)
    codes[present & (values == 0)] = ZERO
    codes[present & np.isinf(values)] = INFINITE
    codes[present & np.isnan(values)] = NOT_A_NUMBER
    return codes


def decode(codes: Codes, scale: Scale) -> Floats:
    """The norms of codes: NaN where absent or not a number."""
    values = np.power(10.0, scale.low + (codes.astype(np.float64) - LEAST) / (MOST - LEAST) * (scale.high - scale.low))
    values[codes == ZERO] = 0.0
    values[codes == INFINITE] = np.inf
    values[(codes == NOT_A_NUMBER) | (codes == ABSENT)] = np.nan
    return values


def extremes(codes: Codes, starts: npt.NDArray[np.intp]) -> tuple[Codes, Codes]:
    """Smallest and largest code of each bin, each [bins, L], from codes [S, L]. Absent samples count in neither."""
    largest = np.maximum.reduceat(codes, starts, axis=0)
    present = np.where(codes == ABSENT, np.uint16(NOT_A_NUMBER), codes)
    smallest = np.minimum.reduceat(present, starts, axis=0)
    smallest[largest == ABSENT] = ABSENT
    return smallest, largest


def thin(steps: npt.NDArray[Any], values: Floats, bins: int) -> tuple[npt.NDArray[Any], Floats]:
    """At most two points for each of `bins` bins: its extremes, in their order; a non-finite value is an extreme."""
    if len(values) <= 2 * bins:
        return steps, values
    starts = bin_starts(len(values), bins)
    ends = np.append(starts[1:], len(values))
    chosen: list[int] = []
    for start, end in zip(starts, ends, strict=True):
        part = values[start:end]
        odd = np.flatnonzero(~np.isfinite(part))
        if len(odd):
            pair = {int(odd[0]), int(np.argmax(np.where(np.isfinite(part), part, -np.inf)))}
        else:
            pair = {int(part.argmin()), int(part.argmax())}
        chosen += [int(start) + at for at in sorted(pair)]
    return steps[chosen], values[chosen]
