"""What collecting sharded gradients costs: 200 parameters of 64x64, sharded over gloo ranks on one machine.

    python tests/benchmarks/bench_collector_distributed.py [--ranks 4] [--rounds 20]

Interleaved in one run on all ranks: per-parameter `norm().full_tensor().item()`, `get_total_norm(...).item()`, and the
collector: what a due step takes until training goes on, while the sum over the ranks is on its way, and until it is
there.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable


def measure(rank: int, world: int, store: str, rounds: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from tracker_bridge.collector import GradientNormCollector

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Module()
    model.items = nn.ParameterList()
    for _ in range(200):
        parameter = nn.Parameter(distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)])
        model.items.append(parameter)
    gradients = [p.grad for p in model.items]
    collector = GradientNormCollector(model)

    def per_parameter() -> None:
        for gradient in gradients:
            gradient.norm().full_tensor().item()

    def total() -> None:
        norm = torch.nn.utils.get_total_norm(gradients)
        norm.full_tensor().item()

    def values() -> None:
        norms = collector.collect()
        assert norms is not None
        assert norms.values.all()

    ways: dict[str, Callable[[], object]] = {
        "per parameter .norm().item()": per_parameter,
        "get_total_norm": total,
        "collector": collector.collect,
        "collector, to its values": values,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    shuffled = random.Random(0)
    for turn in range(rounds + 2):
        for name in shuffled.sample(list(ways), len(ways)):
            dist.barrier()
            start = time.perf_counter()
            ways[name]()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    assert not collector.faults, collector.faults
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in times.items()}
        print(f"torch {torch.__version__}, {world} gloo ranks, {os.cpu_count()} cores, 200 parameters of 64x64")
        for name, seconds in medians.items():
            print(f"    {name:<30} {seconds * 1e3:9.2f} ms")
        for under, target in (("per parameter .norm().item()", 1 / 20), ("get_total_norm", 0.5)):
            ratio, whole = (medians[name] / medians[under] for name in ("collector", "collector, to its values"))
            verdict = "ok" if ratio <= target else "MISSED"
            print(f"    collector / {under} = {ratio:.4f} (to its values {whole:.4f})   target <= {target}   {verdict}")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        measure(options.rank, options.ranks, options.store, options.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        common = [sys.executable, __file__, "--ranks", str(options.ranks), "--rounds", str(options.rounds)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen([*common, "--store", f"{folder}/store", "--rank", str(rank)], env=environment)
            for rank in range(options.ranks)
        ]
        sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
