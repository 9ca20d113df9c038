"""Delivered points/s of the W&B and Neptune adapters (offline), beside the SDK's everyday call in the same run.

    python tests/benchmarks/bench_adapters_wandb_neptune.py [--series 1000] [--steps 200] [--rounds 5]

Each round runs both ways once, in random order, each in a process of its own with the SDK already imported; the clock
runs from the first point until the SDK's run is closed, which is when all of it is in the tracker's own file. Starting
the SDK is in neither. Printed: the median of each way, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WAYS = {"wandb": ("run.log(d, step=s)", "adapter"), "neptune": ("log_metrics a step", "adapter")}


def names_and_values(series: int, steps: int) -> tuple[tuple[str, ...], np.ndarray]:
    """[series] names and float64 [steps, series]."""
    names = tuple(f"gradients/encoder.layer.{number // 10}.weight{number % 10}" for number in range(series))
    return names, np.random.default_rng(0).lognormal(size=(steps, series))


def everyday(tracker: str, folder: Path, names: tuple[str, ...], values: np.ndarray) -> float:
    """Seconds for the SDK as people use it."""
    if tracker == "wandb":
        import wandb

        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        run = wandb.init(project="bench", mode="offline", dir=str(folder), settings=settings)
        run.log({"warm": 1.0}, step=0)
        start = time.perf_counter()
        for step, row in enumerate(values, 1):
            run.log(dict(zip(names, row.tolist(), strict=True)), step=step)
        run.finish()
        return time.perf_counter() - start
    from neptune_scale import Run

    run = Run(
        run_id="bench",
        project="a/bench",
        mode="offline",
        log_directory=folder,
        enable_console_log_capture=False,
        source_tracking_config=None,
    )
    run.log_metrics({"warm": 1.0}, step=0)
    start = time.perf_counter()
    for step, row in enumerate(values, 1):
        run.log_metrics(dict(zip(names, row.tolist(), strict=True)), step=step)
    run.close()
    return time.perf_counter() - start


def adapter(tracker: str, folder: Path, names: tuple[str, ...], values: np.ndarray) -> float:
    """Seconds for the adapter with batches as the courier makes them, ledger and waiting for the log included."""
    import msgspec

    from tracker_bridge.adapter import Batch, Row, RunInfo

    if tracker == "wandb":
        from tracker_bridge_wandb import WandbAdapter as Kind

        options = {"mode": "offline", "dir": str(folder)}
    else:
        from tracker_bridge_neptune import NeptuneAdapter as Kind  # type: ignore[assignment]

        options = {"mode": "offline", "log_directory": str(folder)}
    private = folder / "private"
    private.mkdir()
    now = time.time_ns()
    tracked = Kind(msgspec.convert(options, Kind.options_type))
    tracked.open(RunInfo("bench", "b", "bench", None, None, folder, private, started_ns=now))
    rows = [Row(step, now + step, step, names, row) for step, row in enumerate(values, 1)]
    tracked.write(Batch((Row(0, now, 0, ("warm",), np.ones(1)),)))
    tracked.flush()
    start = time.perf_counter()
    length = max(1, Kind.capabilities.max_points // len(names))
    for first in range(0, len(rows), length):
        tracked.write(Batch(tuple(rows[first : first + length])))
    tracked.flush()
    tracked.close("finished")
    return time.perf_counter() - start


def one(tracker: str, way: str, series: int, steps: int) -> None:
    """Run one way in this process and print its seconds."""
    names, values = names_and_values(series, steps)
    measure = adapter if way == "adapter" else everyday
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(tracker, Path(folder), names, values)))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tracker", choices=[*WAYS])
    parser.add_argument("--one", nargs=2, metavar=("TRACKER", "WAY"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(*chosen.one, chosen.series, chosen.steps)
        return
    points = chosen.series * chosen.steps
    size = ["--series", str(chosen.series), "--steps", str(chosen.steps)]
    for tracker in [chosen.tracker] if chosen.tracker else WAYS:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS[tracker]}
        for _ in range(chosen.rounds):
            for way in random.sample(WAYS[tracker], 2):
                command = [sys.executable, __file__, "--one", tracker, way, *size]
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
                seconds[way].append(float(done.stdout.strip().splitlines()[-1]))
        usual, ours = WAYS[tracker]
        ratios = [slow / fast for slow, fast in zip(seconds[usual], seconds[ours], strict=True)]
        for way in WAYS[tracker]:
            print(f"{tracker:8} {way:20} {points / statistics.median(seconds[way]):12,.0f} points/s")
        spread = f"(rounds: {min(ratios):.1f} to {max(ratios):.1f})"
        print(f"{tracker:8} {'ratio':20} {statistics.median(ratios):12.1f}   {spread}")


if __name__ == "__main__":
    main()
