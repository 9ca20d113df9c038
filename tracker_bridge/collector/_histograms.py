"""Histograms of gradients, counted on their device; only edges and counts travel to the host.

64 bins of equal width from minus to plus the largest finite magnitude of the layer. Non-finite elements are in no bin.
Knows nothing of process groups: what is sharded over them is counted shard by shard (`_distributed`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tracker_bridge.collector._device import HostCopy
from tracker_bridge.records import Histogram, Step, pack_values


class GradientHistogram:
    """The histogram of one layer at one step. Reading it may wait for the device, `is_ready` never does."""

    __slots__ = ("_numbers", "_scale", "name", "step", "time_ns")

    def __init__(self, name: str, step: Step, time_ns: int, numbers: HostCopy, scale: HostCopy | None) -> None:
        self.name = name
        self.step = step
        self.time_ns = time_ns
        self._numbers = numbers
        self._scale = scale

    def is_ready(self) -> bool:
        """Whether the numbers have reached the host. Never waits."""
        return self._numbers.is_ready() and (self._scale is None or self._scale.is_ready())

    def to_record(self) -> Histogram:
        """The record to write. Waits if not ready."""
        numbers = self._numbers.values()
        peak = float(numbers[0]) / (1.0 if self._scale is None else float(self._scale.values()[0]))
        counts = numbers[1:]
        if not np.isfinite(peak):  # some process could not count its shard
            peak, counts = 0.0, np.zeros_like(counts)
        edges = np.linspace(-1.0, 1.0, len(counts) + 1) * (peak or np.finfo(np.float32).tiny)
        return Histogram(
            time_ns=self.time_ns, name=self.name, step=self.step, edges=pack_values(edges), counts=pack_values(counts)
        )


def count_on_device(gradient: Tensor, bins: int) -> Tensor:
    """float64 [1 + bins] on the gradient's device: the largest finite magnitude, and the counts. Waits for nothing."""
    flat = real_elements(gradient)
    peak = peak_of(flat)
    return torch.cat([peak.reshape(1), counts_of(flat, peak, bins)])


def real_elements(gradient: Tensor) -> Tensor:
    """The elements to count, 1-d, in float32 or float64; magnitudes of complex ones."""
    flat = gradient.detach().reshape(-1)
    if flat.is_complex():
        flat = flat.abs()
    return flat if flat.dtype == torch.float64 else flat.to(torch.float32)


def peak_of(flat: Tensor) -> Tensor:
    """The largest finite magnitude, 0 if there is none; float64, 0-d."""
    return (
        torch.where(flat.isfinite(), flat, 0.0).abs().amax().double() if flat.numel() else flat.new_zeros(()).double()
    )


def counts_of(flat: Tensor, peak: Tensor, bins: int) -> Tensor:
    """How many elements are in each bin from `-peak` to `peak`; float64 [bins]."""
    peak = peak.to(flat.dtype)
    unit = torch.where(flat.isfinite(), flat / torch.where(peak > 0, peak, 1.0), 2.0)  # 2 is outside of every bin
    return torch.histc(unit, bins, -1.0, 1.0).double()
