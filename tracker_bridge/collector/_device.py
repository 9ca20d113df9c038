"""Values on their way to the host, from a device or from other processes, without waiting for them.

The only file that knows pinned memory, streams and events. What is on the CPU and of this process is there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float64 = npt.NDArray[np.float64]


class Arrival(Protocol):
    """When something has reached the host, as a `torch.Event` says it."""

    def query(self) -> bool:
        """Whether it has. Never waits."""

    def synchronize(self) -> object:
        """Wait until it has. Raises what went wrong on the way."""


class HostCopy:
    """Numbers of some tensors, copied to the host in the background. `copy_to_host` and `sum_on_its_way` make them.

    The tensors may be freed or changed right after: what is copied is what they held on their stream.
    """

    __slots__ = ("_event", "_host", "_pool", "_values")

    def __init__(
        self,
        values: Float64 | None,
        host: Tensor | None = None,
        event: Arrival | None = None,
        pool: PinnedPool | None = None,
    ) -> None:
        self._values = values
        self._host = host
        self._event = event
        self._pool = pool

    def is_ready(self) -> bool:
        """Whether `values` would not wait. Never waits itself."""
        return self._values is not None or (self._event is not None and bool(self._event.query()))

    def values(self) -> Float64:
        """All numbers in order, float64 [n]; waits if they are not there yet.

        Raises what torch raises if the device, or another process of a sum, has failed.
        """
        if self._values is None:
            assert self._event is not None
            assert self._host is not None
            self._event.synchronize()
            self._values = self._host.numpy().astype(np.float64)
            if self._pool is not None:
                self._pool.give_back(self._host)
            self._host = self._event = self._pool = None
        return self._values


def copy_to_host(tensors: Sequence[Tensor], pool: PinnedPool | None = None) -> HostCopy:
    """Start to copy real scalars or 1-d tensors of one device to the host and return at once.

    On the CPU the result is ready, and no element was read through a blocking scalar read. While a CUDA graph is
    captured nothing may be copied out of it: `RuntimeError`.
    """
    if not tensors:
        return HostCopy(np.zeros(0))
    device = tensors[0].device
    if device.type == "cpu":
        return HostCopy(np.concatenate([_numpy(t) for t in tensors]))
    if capturing(device):
        raise RuntimeError("values cannot be read while a graph is being captured; collect outside of the capture")
    wide = torch.float32 if device.type == "mps" else torch.float64
    parts = [t.detach().reshape(-1).to(wide) for t in tensors]
    vector = parts[0] if len(parts) == 1 else torch.cat(parts)
    host = (pool or PinnedPool()).take(vector.numel(), wide)
    host.copy_(vector, non_blocking=True)
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return HostCopy(None, host, event, pool)


class _Collective:
    """The end of a collective that was started on tensors of the CPU.

    It keeps the group: one that a script destroys meanwhile would break the connections that others still need.
    """

    def __init__(self, work: Any, group: Any) -> None:
        self._work = work
        self._group = group

    def query(self) -> bool:
        return bool(self._work.is_completed())

    def synchronize(self) -> None:
        self._work.wait()


def sum_on_its_way(vector: Tensor, operation: Any, group: Any, pool: PinnedPool | None = None) -> HostCopy:
    """Add up a float64 vector [n] over the processes of `group` (None: this one alone) and start it to the host.

    All of them must call this in the same order. On the CPU the sum goes on by itself in threads of torch: processes
    that have less to do are not held up by the slowest.
    """
    if group is None:
        return copy_to_host([vector], pool)
    if vector.device.type != "cpu":
        torch.distributed.all_reduce(vector, op=operation, group=group)
        return copy_to_host([vector], pool)
    work = torch.distributed.all_reduce(vector, op=operation, group=group, async_op=True)
    if torch.distributed.get_backend(group) == "fake":
        return copy_to_host([vector], pool)  # torch's own for dry runs: its work is done at once, and never says so
    return HostCopy(None, vector, _Collective(work, group))


def capturing(device: torch.device) -> bool:
    """Whether the current stream of a device records a CUDA graph, in which events and host copies are errors."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class PinnedPool:
    """Page-locked host vectors, used in turn. One that was read is free again; none is ever waited for."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A vector [numel] that nobody uses."""
        free = self._free.get((numel, dtype))
        return free.pop() if free else torch.empty(numel, dtype=dtype, device="cpu", pin_memory=True)

    def pinned_copy(self, tensor: Tensor) -> Tensor:
        """A page-locked copy of a small host tensor, to be sent without waiting.

        It comes from torch's caching host allocator, which does not reuse it before its copy is over.
        """
        return tensor.pin_memory()

    def give_back(self, host: Tensor) -> None:
        """Its numbers were read and its copy is over."""
        self._free.setdefault((host.numel(), host.dtype), []).append(host)


def _numpy(tensor: Tensor) -> Float64:
    tensor = tensor.detach().reshape(-1)
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float64)
    return tensor.numpy().astype(np.float64)
