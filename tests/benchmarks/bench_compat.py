"""The usual Neptune recipe, unchanged, with neptune-scale and with the stand-in: what it costs the training thread.

A norm and a `run.log_metrics` for each parameter, as in the tutorial. Each step draws at random whose `Run` is logged
to; neptune-scale runs offline (no upload process beside it), the stand-in delivers to `jsonl` meanwhile. Printed are
medians a step, of elapsed time and of the thread's own processor time (which leaves out the SDK's waiting for its
disk): of the logging calls alone, and of the whole recipe with its norms; then what the launcher's watching costs: the
look before each optimizer step, and finding the model at the first.

    python tests/benchmarks/bench_compat.py [--steps 60] [--layers 50]
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tracker_bridge.compat import neptune_scale as stand_in
from tracker_bridge.compat._watching import OptimizerWatch, find_models

WIDTH, BATCH = 64, 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(arguments.layers)))
    x = torch.randn(BATCH, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.chdir(home)
        os.environ["TRACKER_BRIDGE_BACKENDS"] = "jsonl"
        runs = {"neptune-scale": _sdk_run(home), "stand-in": stand_in.Run(project="team/bench")}
        times: dict[str, list[tuple[float, ...]]] = {name: [] for name in runs}
        for step in range(arguments.steps):
            model.zero_grad()
            model(x).square().mean().backward()
            name = random.choice(list(runs))
            times[name].append(_recipe(model, runs[name], step))
        for run in runs.values():
            run.close()
        _print(times, 2 * arguments.layers)
        _print_watching(model)
        os.chdir("/")


def _sdk_run(home: Path) -> Any:
    import neptune_scale

    return neptune_scale.Run(
        project="team/bench",
        mode="offline",
        log_directory=home / "neptune",
        enable_console_log_capture=False,
        source_tracking_config=None,
    )


def _recipe(model: torch.nn.Module, run: Any, step: int) -> tuple[float, ...]:
    """Seconds in the logging calls and in all, then the same of processor time."""
    logging = logging_cpu = 0.0
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            data = {f"debug/gradient/{name}/norm": parameter.grad.norm().item()}
            before, before_cpu = time.perf_counter(), time.thread_time()
            run.log_metrics(data=data, step=step)
            logging += time.perf_counter() - before
            logging_cpu += time.thread_time() - before_cpu
    return logging, time.perf_counter() - begin, logging_cpu, time.thread_time() - begin_cpu


def _print(times: dict[str, list[tuple[float, ...]]], calls: int) -> None:
    parts = ("logging, elapsed", "whole recipe, elapsed", "logging, processor", "whole recipe, processor")
    print(f"{calls} parameters a step")
    for index, part in enumerate(parts):
        medians = {name: float(np.median([row[index] for row in found])) for name, found in times.items()}
        shown = ", ".join(
            f"{name} {one * 1e3:.2f} ms ({one / calls * 1e6:.1f} us each)" for name, one in medians.items()
        )
        print(f"{part}: {shown}: {medians['neptune-scale'] / medians['stand-in']:.1f}x cheaper")


def _print_watching(model: torch.nn.Module) -> None:
    class Closed:
        _closed = False

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = OptimizerWatch(lambda _: None)
    watch._runs[id(optimizer)] = Closed()  # type: ignore[assignment]
    look = _median(lambda: [watch._before_step(optimizer, (), {}) for _ in range(1000)], 50) / 1000
    step = _median(optimizer.step, 50)
    begin = time.thread_time()
    for _ in range(5):
        find_models(optimizer)
    find = (time.thread_time() - begin) / 5
    objects = len(gc.get_objects())
    print(f"watching: a look {look * 1e9:.0f} ns before each optimizer step ({step * 1e3:.2f} ms)")
    print(f"finding the model at the first step: {find * 1e3:.1f} ms of processor time, {objects:,} objects")


def _median(action: Callable[[], Any], times: int) -> float:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        found.append(time.perf_counter() - begin)
    return float(np.median(found))


if __name__ == "__main__":
    main()
