"""What the processes of `test_distributed` run: real gloo groups, one process a rank, every case in turn.

    python tests/collector/ranks.py RANK WORLD_SIZE STORE_FILE OUT_FILE

Each rank writes `{case: result}` as JSON; a case that raises has the traceback as its result.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tracker_bridge.collector import GradientHistogram, GradientNormCollector, GradientNorms
from tracker_bridge.records import unpack_values

Case = Callable[[], dict[str, Any]]
CASES: dict[str, tuple[int, Case]] = {}


def case(world: int) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        CASES[function.__name__] = (world, function)
        return function

    return register


class Net(nn.Module):
    """Layers of several sizes; a bias of 3 and a vector of 1 leave some ranks of a shard with nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norm = nn.LayerNorm(8)
        self.narrow = nn.Linear(8, 3)
        self.out = nn.Linear(3, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(torch.tanh(self.narrow(self.norm(x))))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def truth(ranks: int, p: float = 2.0) -> dict[str, float]:
    """The norms of the unsharded model on one process, over the batches of all ranks."""
    model = net()
    torch.stack([model(batch(rank)).pow(2).mean() for rank in range(ranks)]).mean().backward()
    return {
        n: float(torch.linalg.vector_norm(q.grad.double(), p))
        for n, q in model.named_parameters()
        if q.grad is not None
    }


def backward(model: nn.Module, data_rank: int) -> None:
    model(batch(data_rank)).pow(2).mean().backward()


def apart(found: dict[str, float], expected: dict[str, float]) -> float:
    """The largest relative difference; infinite if the names differ."""
    if list(found) != list(expected):
        return math.inf
    return max(abs(found[name] / expected[name] - 1) for name in expected)


def sharded(mesh: DeviceMesh | None = None, **options: Any) -> Net:
    model = net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def watched(
    model: nn.Module, **options: Any
) -> tuple[GradientNormCollector, torch.optim.Optimizer, list[GradientNorms]]:
    seen: list[GradientNorms] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    collector = GradientNormCollector(model, sink=seen.append, **options)
    collector.attach(optimizer)
    return collector, optimizer, seen


def counted(call: Callable[[], Any]) -> int:
    with CommDebugMode() as communication:
        call()
    return communication.get_total_counts()


def whole_histograms() -> dict[str, list[float]]:
    """Edges and counts of the unsharded model on one process."""
    model = net()
    kept: list[GradientHistogram] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    GradientNormCollector(model, histogram_sink=kept.append, histogram_bins=4).attach(optimizer)
    torch.stack([model(batch(rank)).pow(2).mean() for rank in range(dist.get_world_size())]).mean().backward()
    optimizer.step()
    return numbers_of(kept)


def numbers_of(histograms: list[GradientHistogram]) -> dict[str, list[float]]:
    records = [histogram.to_record() for histogram in histograms]
    return {r.name: [unpack_values(r.edges)[-1], *unpack_values(r.counts)] for r in records}


@case(2)
def histograms_of_shards() -> dict[str, Any]:
    model = sharded()
    kept: list[GradientHistogram] = []
    collector, optimizer, seen = watched(model, histogram_sink=kept.append, histogram_bins=4)
    backward(model, dist.get_rank())
    collectives = counted(optimizer.step)
    found, expected = numbers_of(kept), whole_histograms()
    return {
        "same_names": list(found) == list(expected),
        "apart": max(abs(a - b) for name in expected for a, b in zip(found[name], expected[name], strict=True)),
        "collectives": collectives,
        "records": len(seen),
        "faults": collector.faults,
    }


@case(2)
def ddp() -> dict[str, Any]:
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    collector, optimizer, seen = watched(model)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, dist.get_rank())
        collectives = counted(optimizer.step)
    local = net()
    backward(local, dist.get_rank())
    return {
        "apart": apart(dict(seen[-1].layers), truth(2)),
        "collectives": collectives,
        "naive": float(local.layers[0].weight.grad.norm()) / truth(2)["layers.0.weight"],
        "post_clip": [n.post_clip for n in seen],
        "faults": collector.faults,
    }


@case(2)
def ddp_clipped_by_the_script() -> dict[str, Any]:
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    _, optimizer, seen = watched(model)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, dist.get_rank())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.001)
        optimizer.step()
    return {"post_clip": [n.post_clip for n in seen]}


@case(2)
def ddp_accumulation() -> dict[str, Any]:
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    _, optimizer, seen = watched(model)
    with model.no_sync():
        backward(model, dist.get_rank())
    backward(model, dist.get_rank())
    optimizer.step()
    halves = {name: 2 * value for name, value in truth(2).items()}
    return {"apart": apart(dict(seen[0].layers), halves), "records": len(seen)}


def check_fsdp(mesh: DeviceMesh | None, **options: Any) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for p in (1.0, 2.0, 3.0, math.inf):
        model = sharded(mesh, **options)
        collector, optimizer, seen = watched(model, norm_type=p)
        backward(model, dist.get_rank())
        collectives = counted(optimizer.step)
        results[str(p)] = {
            "apart": apart(dict(seen[0].layers), truth(dist.get_world_size(), p)),
            "total": seen[0].total,
            "collectives": collectives,
            "post_clip": seen[0].post_clip,
            "numel": sum(seen[0].table.numel),
            "faults": collector.faults,
        }
    empty = sum(p.grad.to_local().numel() == 0 for p in model.parameters() if p.grad is not None)
    naive = model.layers[0].weight.grad.norm().to_local().item()
    return {**results, "empty": empty, "naive": naive / truth(dist.get_world_size())["layers.0.weight"]}


@case(2)
def fsdp2() -> dict[str, Any]:
    return check_fsdp(None)


@case(4)
def fsdp2_on_four() -> dict[str, Any]:
    return check_fsdp(None)


@case(4)
def hsdp() -> dict[str, Any]:
    return check_fsdp(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


@case(2)
def cpu_offload() -> dict[str, Any]:
    return check_fsdp(None, offload_policy=CPUOffloadPolicy(pin_memory=False))


@case(2)
def fsdp2_clips_like_torch() -> dict[str, Any]:
    ours, theirs = sharded(), sharded()
    collector, optimizer, seen = watched(ours)
    backward(ours, dist.get_rank())
    backward(theirs, dist.get_rank())
    found: list[torch.Tensor] = []
    our_count = counted(lambda: found.append(collector.clip_grad_norm_(0.01)))
    their_count = counted(lambda: found.append(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)))
    step_count = counted(optimizer.step)
    same = all(
        torch.equal(a.grad.to_local(), b.grad.to_local())
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
        if a.grad is not None
    )
    return {
        "same": same and torch.equal(found[0].full_tensor(), found[1].full_tensor()),
        "counts": [our_count + step_count, their_count],
        "apart": apart(dict(seen[0].layers), truth(2)),
        "total": abs(seen[0].total / math.hypot(*truth(2).values()) - 1),
        "coefficient": seen[0].clip_coefficient,
        "records": len(seen),
        "faults": collector.faults,
    }


@case(2)
def fsdp2_clipped_by_the_script() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for noted in (True, False):
        model = sharded()
        collector, optimizer, seen = watched(model)
        for _ in range(2):
            optimizer.zero_grad()
            backward(model, dist.get_rank())
            total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if noted:
                collector.note_clip(total, 0.01)
            optimizer.step()
        results["noted" if noted else "silent"] = {
            "post_clip": [n.post_clip for n in seen],
            "apart": apart(dict(seen[-1].layers), truth(2)),
            "faults": collector.faults,
        }
    return results


@case(2)
def sharded_after_watch() -> dict[str, Any]:
    model = net()
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    backward(model, 0)
    collector.collect()
    model.zero_grad()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    collector.attach(optimizer)
    backward(model, dist.get_rank())
    optimizer.step()
    return {"apart": apart(dict(seen[-1].layers), truth(2)), "same table": seen[0].table is seen[1].table}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def blocks() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*[Block() for _ in range(2)])


def blocks_truth(ranks: int) -> dict[str, float]:
    model = blocks()
    torch.stack([model(sequence(rank)).pow(2).mean() for rank in range(ranks)]).mean().backward()
    return {n: float(q.grad.double().norm()) for n, q in model.named_parameters()}


def sequence(rank: int) -> torch.Tensor:
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(rank))


def parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


@case(2)
def tensor_parallel() -> dict[str, Any]:
    model = parallel(blocks(), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    collector, optimizer, seen = watched(model)
    model(sequence(0)).pow(2).mean().backward()
    kinds = sorted({str(p.grad.placements) for p in model.parameters() if isinstance(p.grad, DTensor)})
    return {
        "collectives": counted(optimizer.step),
        "apart": apart(dict(seen[0].layers), blocks_truth(1)),
        "placements": kinds,
        "faults": collector.faults,
    }


@case(4)
def fsdp_and_tensor_parallel() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallel(blocks(), mesh["tp"])
    for block in model:
        for name, p in list(block.norm.named_parameters()):
            block.norm.register_parameter(name, nn.Parameter(distribute_tensor(p.data, mesh["tp"], [Replicate()])))
        block.norm.register_forward_pre_hook(
            lambda m, args: (DTensor.from_local(args[0], mesh["tp"], [Replicate()], run_check=False),)
        )
        block.norm.register_forward_hook(lambda m, args, out: out.to_local())
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    collector, optimizer, seen = watched(model)
    model(sequence(dist.get_rank() // 2)).pow(2).mean().backward()
    return {
        "collectives": counted(optimizer.step),
        "apart": apart(dict(seen[0].layers), blocks_truth(2)),
        "placements": sorted({str(p.grad.placements) for p in model.parameters()}),
        "faults": collector.faults,
    }


@case(2)
def sequence_parallel_norms() -> dict[str, Any]:
    """Under sequence parallelism the gradient of a replicated norm is a sum over the ranks' parts of the sequence."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(2)
    model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    whole = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    whole(sequence(0)).pow(3).mean().backward()
    expected = {n: float(p.grad.double().norm()) for n, p in whole.named_parameters()}
    parallelize_module(model, mesh, {"0": SequenceParallel(), "1": SequenceParallel()})
    collector, optimizer, seen = watched(model)
    model(distribute_tensor(sequence(0), mesh, [Shard(1)])).pow(3).mean().full_tensor().backward()
    optimizer.step()
    return {
        "apart": apart(dict(seen[0].layers), expected),
        "placements": sorted({str(p.grad.placements) for p in model.parameters()}),
        "faults": collector.faults,
    }


@case(2)
def replicated_and_partial() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Module()
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    model.copies = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Replicate()]))
    model.copies.grad = distribute_tensor(values, mesh, [Replicate()])
    model.partial = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Replicate()]))
    model.partial.grad = DTensor.from_local(values / 2, mesh, [Partial()])
    model.shards = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
    model.shards.grad = distribute_tensor(values, mesh, [Shard(0)])
    model.plain = nn.Parameter(torch.zeros(4))
    model.plain.grad = values.clone()
    return {"layers": dict(GradientNormCollector(model).collect().layers)}


@case(2)
def non_finite_on_one_rank() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for p in (2.0, math.inf):
        mesh = init_device_mesh("cpu", (2,))
        model = nn.Module()
        for name, last in (("nan", math.nan), ("inf", math.inf), ("fine", 2.0)):
            values = torch.tensor([1.0, 2.0, 3.0, last])
            parameter = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
            parameter.grad = distribute_tensor(values, mesh, [Shard(0)])
            setattr(model, name, parameter)
        results[str(p)] = {k: repr(v) for k, v in GradientNormCollector(model, norm_type=p).collect().layers.items()}
    return results


@case(2)
def missing_on_one_rank() -> dict[str, Any]:
    model = sharded()
    _, optimizer, seen = watched(model)
    backward(model, dist.get_rank())
    if dist.get_rank() == 1:
        model.out.weight.grad = None
    optimizer.step()
    return {"layers": list(seen[0].layers), "failed": seen[0].failed}


@case(2)
def one_rank_fails() -> dict[str, Any]:
    model = sharded()

    def gradient_of(p: nn.Parameter) -> torch.Tensor | None:
        if dist.get_rank() == 1:
            raise RuntimeError("only here")
        return p.grad

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        collector, optimizer, seen = watched(model, gradient_of=gradient_of)
        backward(model, dist.get_rank())
        optimizer.step()
    return {"failed": seen[0].failed, "layers": list(seen[0].layers), "faults": dict(collector.faults)}


@case(2)
def pipeline_stages() -> dict[str, Any]:
    rank = dist.get_rank()
    stage = nn.Sequential(*net().layers[: 1 + rank])
    _, optimizer, seen = watched(stage, every_n_steps=2)
    for _ in range(3):
        stage(batch(rank)).sum().backward()
        collectives = counted(optimizer.step)
    return {"steps": [n.step for n in seen], "layers": list(seen[0].layers), "collectives": collectives}


@case(2)
def more_kinds_of_sharded_layers() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, build in (("adamw", torch.optim.AdamW), ("rmsprop", torch.optim.RMSprop)):
        model, whole = sharded(), net()
        seen: list[GradientNorms] = []
        collector = GradientNormCollector(
            model, sink=seen.append, parameter_norms=True, update_ratio=True, zero_fraction=True
        )
        optimizer = build(model.parameters(), lr=0.01)
        collector.attach(optimizer)
        reference = build(whole.parameters(), lr=0.01)
        backward(model, dist.get_rank())
        torch.stack([whole(batch(rank)).pow(2).mean() for rank in range(2)]).mean().backward()
        before = {n: p.detach().clone() for n, p in whole.named_parameters()}
        collectives = counted(optimizer.step)
        reference.step()
        ratio = {
            n: float((p.detach() - before[n]).double().norm() / before[n].double().norm())
            for n, p in whole.named_parameters()
            if p.grad is not None and before[n].any()
        }
        sizes = {n: float(b.norm()) for n, b in before.items() if b.any()}
        found = {n.kind: dict(n.layers) for n in seen}
        results[name] = {
            "ratio": apart(found["update_ratio"], ratio),
            "parameters": apart({n: v for n, v in found["parameters"].items() if v}, sizes),
            "zeros": set(found["zero_fraction"].values()) == {0.0},
            "collectives": collectives,
            "faults": collector.faults,
        }
    return results


@case(2)
def fsdp1_is_refused() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(net(), use_orig_params=True, device_id=torch.device("cpu"))
    try:
        GradientNormCollector(model)
    except ValueError as error:
        return {"error": str(error)}
    return {}


@case(2)
def scaler_skips() -> dict[str, Any]:
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    collector.attach(optimizer, scaler)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(batch(dist.get_rank())).pow(2).mean()).backward()
        if step == 1 and dist.get_rank() == 1:
            model.layers[0].weight.grad.to_local().fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
    return {
        "skipped": [n.skipped for n in seen],
        "steps": [n.step for n in seen],
        "apart": apart(dict(seen[2].layers), truth(2)),
        "faults": collector.faults,
    }


def main() -> None:
    rank, world, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    results: dict[str, Any] = {}
    for name, (size, run) in CASES.items():
        if size == world:
            try:
                results[name] = run()
            except Exception:
                results[name] = {"raised": traceback.format_exc()}
            dist.barrier()
    with open(out, "w") as file:
        json.dump(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
