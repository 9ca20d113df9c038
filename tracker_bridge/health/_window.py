"""A layer's recent past: a ring of log norms and its robust baseline, for all layers at once.

Bounded: `window` float32 for each layer. Non-finite values, zeros and absent gradients never enter it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

REFRESH = 8
"""The baseline is computed anew every so many samples; a median of 128 hardly moves in between."""

RECENT = 16
_HIGH = 92
"""Percentile; a burst of ten spikes does not reach it."""
_TO_SIGMA = 1.4826  # of a normal distribution, from its median absolute deviation


class Window(msgspec.Struct):
    """Ring and baseline of C columns (the layers, and the total as the last one).

    `ring` float32 [C, W]; `last` float32 [C], what stands in for a sample that a column lacks; `seen` int32 [C],
    samples that it had; float32 [C]: `median`, `sigma`, `high` (the 92nd percentile), `between` and
    `before` (the medians one and two refreshes ago).
    """

    # Any: msgspec resolves annotations at run time and knows no numpy; `_snapshot` writes these as bytes.
    ring: Any
    last: Any
    seen: Any
    median: Any
    sigma: Any
    high: Any
    before: Any
    between: Any
    count: int = 0

    @classmethod
    def empty(cls, columns: int, length: int) -> Window:
        """A window of `columns` x `length` without a sample."""

        def zeros() -> Any:
            return np.zeros(columns, dtype=np.float32)

        seen = np.zeros(columns, dtype=np.int32)
        ring = np.zeros((columns, length), dtype=np.float32)
        return cls(ring, zeros(), seen, zeros(), zeros(), zeros(), zeros(), zeros())

    @property
    def filled(self) -> int:
        """Samples in the ring."""
        return min(self.count, int(self.ring.shape[1]))

    def push(self, log: Any, valid: Any) -> None:
        """Add a sample: `log` float32 [C]; `valid` bool [C], or None where every column has one."""
        if self.count and np.count_nonzero(self.seen) < len(self.seen):
            new = self.seen == 0 if valid is None else valid & (self.seen == 0)
            # A layer that joins late starts with a constant past; the floor on sigma makes that harmless.
            self.ring[new, :] = log[new, None]
        if valid is None:
            self.seen += 1
        else:
            log = np.where(valid, log, self.last)
            self.seen += valid
        self.ring[:, self.count % self.ring.shape[1]] = log
        self.last = log
        self.count += 1

    def refresh(self, sigma_floor: float) -> None:
        """Compute the baseline from the ring."""
        values = self.ring[:, : self.filled]
        length = values.shape[1]
        self.before, self.between = self.between, self.median
        ordered = np.sort(values, axis=1)
        self.median = ordered[:, length // 2].copy()
        self.high = ordered[:, (length - 1) * _HIGH // 100].copy()
        np.subtract(values, self.median[:, None], out=ordered)
        np.abs(ordered, out=ordered)
        ordered.sort(axis=1)
        self.sigma = np.maximum(ordered[:, length // 2] * np.float32(_TO_SIGMA), np.float32(sigma_floor))

    def recent(self, length: int = RECENT) -> Any:
        """The last `length` samples, oldest first, float32 [C, length]; to be read at once, it may be the ring."""
        width = self.ring.shape[1]
        end = (self.count - 1) % width + 1
        if end >= length:
            return self.ring[:, end - length : end]
        return np.concatenate((self.ring[:, end - length :], self.ring[:, :end]), axis=1)


def medians(values: Any) -> Any:
    """The median of each row of a float32 [C, N], float32 [C]. `np.median` takes ten times as long for a few rows."""
    ordered = np.sort(values, axis=1)
    half = ordered.shape[1] // 2
    if ordered.shape[1] % 2:
        return ordered[:, half].copy()
    return (ordered[:, half - 1] + ordered[:, half]) / 2
