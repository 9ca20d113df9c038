"""How fast a backlog reaches TensorBoard, and how much memory the delivery process takes.

Writes 10,000 series x 1,000 steps (10 million points) into a journal, delivers them with a delivery process, and prints
points per second, the process' peak memory, and the same points per second through one `add_scalar` each (measured on
fewer). Then a million small records, with the peak memory after a tenth and after all of them.

    python tests/benchmarks/bench_delivery.py
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

import tracker_bridge as bridge
from tracker_bridge.config import load_config
from tracker_bridge.delivery import DeliveryProcess, plan_of
from tracker_bridge.records import NormVector, SeriesTable, pack_values


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        points = 10_000 * 1_000
        wide, begun = backlog("wide", write_wide), 0.0
        print(f"journal: {points / wide[1] / 1e6:.1f} million points/s appended in 10,000-norm vectors")
        seconds, memory = deliver(wide[0])
        begun = time.perf_counter()
        with contextlib.closing(SummaryWriter(Path(folder) / "torch")) as writer:
            for step in range(20):
                for series in range(1000):
                    writer.add_scalar(f"layer.{series}.weight", 0.5, step)
        everyday = 20_000 / (time.perf_counter() - begun)
        rate = points / seconds
        print(f"delivery to TensorBoard: {rate / 1e6:.2f} million points/s, x{rate / everyday:.0f} add_scalar")
        print(f"peak memory of the delivery process: {memory / 1024:.0f} MiB")
        long, seconds = backlog("long", write_long)
        print(f"journal: {1_000_000 / seconds / 1e3:.0f} thousand calls/s with 2 scalars")
        seconds, memory = deliver(long)
        print(f"a million records: {1_000_000 / seconds / 1e3:.0f} thousand/s, peak memory {memory / 1024:.0f} MiB")


def backlog(name: str, write: Callable[[bridge.Run], None]) -> tuple[Path, float]:
    """A run with a full journal and nothing delivered; its directory and the seconds of writing."""
    run = bridge.init({"backends": "none", "queue": {"max_disk": "4GiB"}}, run_id=name)
    begun = time.perf_counter()
    write(run)
    seconds = time.perf_counter() - begun
    run.close()
    assert run.dir is not None
    return run.dir, seconds


def write_wide(run: bridge.Run) -> None:
    """10,000 series x 1,000 steps."""
    names = tuple(f"model.layers.{number // 10}.part{number % 10}.weight" for number in range(10_000))
    run._append(SeriesTable(0, 0, "gradients", names, (1,) * 10_000))
    values = np.random.default_rng(0).random(10_000)
    for step in range(1000):
        run._append(NormVector(time.time_ns(), step, 0, pack_values(values)))


def write_long(run: bridge.Run) -> None:
    """A million records of two scalars."""
    for step in range(1_000_000):
        run.log_metrics({"loss": 0.5, "acc": 0.25}, step=step)


def deliver(root: Path) -> tuple[float, float]:
    """Seconds of the delivery process, start included, and its peak resident memory in KiB."""
    config = load_config({"backends": {"tensorboard": {"log_dir": str(root / "logs")}}})
    begun = time.perf_counter()
    process = DeliveryProcess(root, plan_of(config, dict(os.environ)), follow=False)
    peak = 0
    status = Path(f"/proc/{process.pid}/status")
    while not process.wait(0.02):
        with contextlib.suppress(OSError, IndexError):
            peak = max(peak, int(status.read_text().partition("VmHWM:")[2].split()[0]))
    return time.perf_counter() - begun, float(peak)


if __name__ == "__main__":
    main()
