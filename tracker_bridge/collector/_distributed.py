"""Gradients that are sharded over processes (DTensor): each process measures its shards, one collective adds them up.

Every process contributes a vector of the same layout, whatever it holds: an empty shard, a missing gradient and a
failed measurement are entries like any other, so no process takes another way than the rest. What is not a DTensor is
whole on its process (DDP, pipeline stages) and needs no collective.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tracker_bridge.collector._device import HostCopy, PinnedPool, sum_on_its_way
from tracker_bridge.collector._histograms import counts_of, peak_of, real_elements
from tracker_bridge.collector._measure import Measured

Groups = dict[tuple[int, ...], Any]
"""Process groups that were made for sets of ranks; kept, since making one is a collective of its own."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Slots on one device mesh: their positions, and what each contributes to the sum over `group`.

    `weights[i]` makes up for copies: a tensor that is replicated over a dimension that is summed over counts once.
    """

    mesh: Any
    positions: npt.NDArray[np.intp]
    weights: npt.NDArray[np.float64]
    group: Any


@dataclass(frozen=True, slots=True)
class Sharding:
    """The slots of a plan that are DTensors, mesh by mesh in the order of their first slot. Equal on all processes."""

    placements: dict[int, tuple[Any, ...]]
    shared: tuple[Shared, ...]


def dtensor_type() -> type | None:
    """`DTensor`, None if nothing has imported it, so that there can be none."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def sharding_of(parameters: Sequence[Tensor], groups: Groups) -> Sharding | None:
    """How the parameters of a plan are sharded; None if they all are plain.

    A process group that is in neither the mesh nor `groups` is made and put there, by all its processes at once.
    """
    dtensor = dtensor_type()
    if dtensor is None or not any(isinstance(p, dtensor) for p in parameters):
        return None
    placements: dict[int, tuple[Any, ...]] = {}
    meshes: dict[Any, list[int]] = {}
    for position, parameter in enumerate(parameters):
        if isinstance(parameter, dtensor):
            spec: Any = parameter
            # A partial sum has no norm; its gradient is brought to a replicated one first.
            placements[position] = tuple(_replicated() if p.is_partial() else p for p in spec.placements)
            meshes.setdefault(spec.device_mesh, []).append(position)
    return Sharding(placements, tuple(_shared(mesh, at, placements, groups) for mesh, at in meshes.items()))


def local_gradient(sharding: Sharding, position: int, gradient: Tensor | None) -> Tensor | None:
    """What this process holds of a gradient. One that is laid out otherwise than its parameter is moved first."""
    dtensor = dtensor_type()
    if gradient is None or dtensor is None or not isinstance(gradient, dtensor):
        return gradient
    spread: Any = gradient
    wanted = sharding.placements.get(position)
    if wanted is None:
        whole: Tensor = spread.full_tensor()
        return whole
    if spread._spec.placements != wanted:
        spread = spread.redistribute(placements=wanted)
    local: Tensor = spread._local_tensor
    return local if type(local) is Tensor else spread.to_local()


def reduce_norms(
    sharding: Sharding, measured: Measured | None, norm_type: float, pool: PinnedPool
) -> list[tuple[npt.NDArray[np.intp], HostCopy]]:
    """The sums over processes, one collective per mesh: positions [k], and a float64 vector on its way to the host.

    The vector holds k sums of `norm ** norm_type` (for the infinity norm k maxima and k counts of NaN), k counts of
    processes with a gradient, and one of processes that failed (`measured` is None).
    """
    operation = torch.distributed.ReduceOp.MAX if norm_type == math.inf else torch.distributed.ReduceOp.SUM
    return [
        (
            shared.positions,
            sum_on_its_way(_contribution(shared, measured, norm_type, pool), operation, shared.group, pool),
        )
        for shared in sharding.shared
    ]


def reduce_histograms(sharding: Sharding, gradients: Sequence[Tensor | None] | None, bins: int) -> dict[int, Tensor]:
    """Histograms of whole gradients from those of shards: position -> float64 [1 + bins], peak and counts.

    Two collectives per mesh, whatever this process holds: the largest magnitudes, then the counts below them. None, or
    a shard that cannot be counted, makes the peak infinite on every process.
    """
    found: dict[int, Tensor] = {}
    for shared in sharding.shared:
        device = torch.device(shared.mesh.device_type)
        shards: list[Tensor | None] = [None] * len(shared.positions)
        peaks = torch.full((len(shards),), math.inf, dtype=torch.float64, device=device)
        if gradients is not None:
            for at, position in enumerate(shared.positions):
                shard = gradients[position]
                if shard is None or shard.layout != torch.strided:
                    peaks[at].zero_()
                    continue
                shards[at] = elements = real_elements(shard).to(device)
                peaks[at].copy_(peak_of(elements))
        if shared.group is not None:
            torch.distributed.all_reduce(peaks, op=torch.distributed.ReduceOp.MAX, group=shared.group)
        counts = torch.zeros((len(shards), bins), dtype=torch.float64, device=device)
        for at, held in enumerate(shards):
            if held is not None:
                counts[at].copy_(counts_of(held, peaks[at], bins) * float(shared.weights[at]))
        if shared.group is not None:
            torch.distributed.all_reduce(counts, group=shared.group)
        for at, position in enumerate(shared.positions):
            found[int(position)] = torch.cat([peaks[at].reshape(1), counts[at]])
    return found


def _contribution(shared: Shared, measured: Measured | None, norm_type: float, pool: PinnedPool) -> Tensor:
    """What this process adds to the sum of one mesh."""
    count = len(shared.positions)
    tail = 2 * count if norm_type == math.inf else count
    host = np.zeros(tail + count + 1, dtype=np.float64)
    moving: list[tuple[npt.NDArray[np.intp], Tensor]] = []
    if measured is None:
        host[-1] = 1.0
    else:
        values = measured.values[shared.positions]
        if norm_type == math.inf:
            host[count:tail] = np.isnan(values)  # a maximum with NaN is not NaN in every backend
            host[:count] = np.where(np.isnan(values), 0.0, values)
        else:
            with np.errstate(all="ignore"):
                host[:count] = values ** (norm_type or 1.0) * shared.weights
        host[tail:-1] = measured.present[shared.positions]
        where = {int(position): at for at, position in enumerate(shared.positions)}
        for positions, vector in measured.waiting:
            inside = [(i, where[int(p)]) for i, p in enumerate(positions) if int(p) in where]
            if inside:
                moving.append((np.array(inside, dtype=np.int64).T, vector))
    device = torch.device(shared.mesh.device_type)
    if device.type == "cpu" and not moving:
        return torch.from_numpy(host)
    vector = _to_device(host, device, pool)
    for (sources, targets), norms in moving:
        at = _to_device(targets, norms.device, pool)
        picked = norms if len(sources) == len(norms) else norms[_to_device(sources, norms.device, pool)]
        if norm_type == math.inf:
            bad = picked.isnan()
            vector.index_copy_(0, at + count, bad.to(vector.dtype))
            vector.index_copy_(0, at, picked.masked_fill(bad, 0.0).to(vector.dtype))
        else:
            weights = _to_device(shared.weights[targets], norms.device, pool)
            vector.index_copy_(0, at, picked.to(vector.dtype).pow(norm_type or 1.0) * weights)
    return vector


def _to_device(array: npt.NDArray[Any], device: torch.device, pool: PinnedPool) -> Tensor:
    """A small array on a device, without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return pool.pinned_copy(tensor).to(device, non_blocking=True)


def _shared(mesh: Any, positions: list[int], placements: dict[int, tuple[Any, ...]], groups: Groups) -> Shared:
    summed = sorted({dim for at in positions for dim, p in enumerate(placements[at]) if _is_shard(p)})
    weights = [
        1.0 / math.prod(mesh.size(dim) for dim in summed if not _is_shard(placements[at][dim])) for at in positions
    ]
    return Shared(mesh, np.array(positions, dtype=np.intp), np.array(weights), _group(mesh, summed, groups))


def _group(mesh: Any, dims: list[int], groups: Groups) -> Any:
    """The process group that spans some dimensions of a mesh; None if there is nothing to sum over."""
    if not dims:
        return None
    if len(dims) == 1:
        return mesh.get_group(dims[0])
    ranks = _ranks(mesh, dims)
    if len(ranks) == torch.distributed.get_world_size():
        return torch.distributed.group.WORLD
    if ranks not in groups:
        groups[ranks] = torch.distributed.new_group(list(ranks), use_local_synchronization=True)
    return groups[ranks]


def _ranks(mesh: Any, dims: list[int]) -> tuple[int, ...]:
    """The ranks that differ from this process in the given dimensions only."""
    own = mesh.get_coordinate()
    index = tuple(slice(None) if dim in dims else own[dim] for dim in range(mesh.ndim))
    return tuple(sorted(int(rank) for rank in mesh.mesh[index].reshape(-1).tolist()))


def _is_shard(placement: Any) -> bool:
    return bool(placement.is_shard()) or type(placement).__name__ == "_StridedShard"


def replicated(tensor: Any) -> list[Any]:
    """The placements of a DTensor that is whole on every process of its mesh."""
    return [_replicated()] * tensor.device_mesh.ndim


def _replicated() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()
