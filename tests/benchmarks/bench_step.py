"""What logging every gradient norm costs a training step, all included.

150 Linear(64, 64) (300 parameters), batch 8, one torch thread, AdamW unless asked for SGD. In one run each step
draws at random one of: nothing; tracker_bridge (watch every step, to TensorBoard, delivered by its own process
meanwhile); the usual recipe (`p.grad.norm().item()` and one `add_scalar` for each parameter); the same recipe handing
values to a background thread. Printed are medians and their ratios to "nothing".

    python tests/benchmarks/bench_step.py [--steps 2000] [--optimizer AdamW|SGD]
"""

from __future__ import annotations

import argparse
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

import tracker_bridge as bridge

LAYERS, WIDTH, BATCH = 150, 64, 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--optimizer", choices=["AdamW", "SGD"], default="AdamW")
    options = parser.parse_args()
    steps = options.steps
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        recipe = SummaryWriter(home / "recipe")
        threaded = BackgroundWriter(SummaryWriter(home / "threaded"))
        run = bridge.init(backends={"tensorboard": {"log_dir": str(home / "bridge")}}, dir=home / "queue")
        collector = run.watch(model)
        run.wait_until_open(30)

        def ours(step: int) -> None:
            collector.collect(step)

        def usual(step: int) -> None:
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                recipe.add_scalar(f"gradients/{name}", parameter.grad.norm().item(), step)

        def behind(step: int) -> None:
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                threaded.put(f"gradients/{name}", parameter.grad.norm().item(), step)

        def nothing(_step: int) -> None:
            pass

        report(measure(model, optimizer, x, steps, [nothing, ours]), "one process: nothing | tracker_bridge")
        report(measure(model, optimizer, x, steps // 4, [nothing, usual]), "the usual recipe beside nothing")
        report(measure(model, optimizer, x, steps // 4, [nothing, behind]), "the recipe with a background thread")
        threaded.close()
        recipe.close()
        print(run.close())


class BackgroundWriter:
    """What people write when the recipe is too slow."""

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer
        self._queue: queue.Queue[tuple[str, float, int] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, name: str, value: float, step: int) -> None:
        """Hand over one value."""
        self._queue.put((name, value, step))

    def close(self) -> None:
        """Wait for the rest."""
        self._queue.put(None)
        self._thread.join()
        self._writer.close()

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            self._writer.add_scalar(*entry)


def measure(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    steps: int,
    ways: list[Callable[[int], None]],
) -> dict[str, np.ndarray]:
    """Seconds of each step, by the way of logging that was drawn for it."""
    times: dict[str, list[float]] = {way.__name__: [] for way in ways}
    choose = random.Random(0)
    for step in range(steps + 20):
        way = choose.choice(ways)
        begun = time.perf_counter()
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        way(step)
        optimizer.step()
        if step >= 20:
            times[way.__name__].append(time.perf_counter() - begun)
    return {name: np.array(values) for name, values in times.items()}


def report(times: dict[str, np.ndarray], title: str) -> None:
    """Medians in ms, and ratios of medians to `nothing`."""
    base = np.median(times["nothing"])
    print(title)
    for name, values in times.items():
        median = np.median(values)
        low, high = np.percentile(values, [10, 90])
        print(f"  {name:8} {median * 1e3:7.2f} ms  (p10 {low * 1e3:.2f}, p90 {high * 1e3:.2f})  x{median / base:.3f}")


if __name__ == "__main__":
    main()
