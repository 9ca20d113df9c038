"""What a logging call costs the training thread under every fault of `logging_faults`; beside it the SDKs' own calls.

Prints p50, p99.9 and the largest in microseconds of `log_metrics` with 5 scalars and of the record of a 1,000-norm
vector, each called `--calls` times at 1,000 calls a second, side by side with a `json.dumps` of the 5 scalars that
shows how fast the machine was meanwhile; then the same calls through each SDK.
An exception from a call ends the benchmark. All faults take about 40 minutes with 100,000 calls.

    python tests/benchmarks/bench_logging.py [--calls 100000] [--sdk-calls 300] [--sleep] [--only PART]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from logging_faults import Fault, faults

import tracker_bridge as bridge
from tests.servers import run_mlflow
from tracker_bridge.records import NormVector, SeriesTable, pack_values

SCALARS = {"loss": 0.1, "acc": 0.2, "lr": 0.3, "grad": 0.4, "time": 0.5}
NORMS = 1000
RATE = 1000.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--sdk-calls", type=int, default=300)
    parser.add_argument("--sleep", action="store_true", help="sleep between calls; every cache is cold then")
    parser.add_argument("--only", default="", help="faults whose name holds this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", WANDB_SILENT="true", WANDB_MODE="offline")
    columns = f"{'p50':>9} {'p99.9':>9} {'max':>10}"
    print(f"{'microseconds':36} {'5 scalars':>30} {'1,000 norms':>30} {'json.dumps':>30}")
    print(f"{'':36} {columns} {columns} {columns}", flush=True)
    with tempfile.TemporaryDirectory() as folder, run_mlflow(Path(folder) / "mlflow") as url:
        for name, prepare in faults(url).items():
            if arguments.only not in name:
                continue
            place = Path(folder, "run")
            place.mkdir()
            os.chdir(place)
            with prepare() as fault:
                times = bridge_case(fault, arguments.calls, arguments.sleep)
            show(name, times)
            os.chdir(folder)
            shutil.rmtree(place)
        if not arguments.only:
            for name, case in sdk_cases(Path(folder)).items():
                show(name, [pace([call], arguments.sdk_calls, 1e9)[0] for call in case])


def show(name: str, kinds: list[np.ndarray]) -> None:
    """One line."""
    cells = []
    for times in kinds:
        p50, late, largest = np.percentile(times / 1e3, [50, 99.9, 100])
        cells.append(f"{p50:9.2f} {late:9.1f} {largest:10.1f}")
    print(f"{name:36} {' '.join(cells)}", flush=True)


def bridge_case(fault: Fault, calls: int, sleeping: bool) -> list[np.ndarray]:
    """Nanoseconds of each call of the two kinds, and of the yardstick that shows how fast the machine was meanwhile."""
    config = {**fault.config, "queue": {"max_disk": "2GiB", **fault.config.get("queue", {})}}
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        run = bridge.init(config)
        run.wait_until_open(20)
        times = pace([log_scalars(run), log_norms(run), yardstick], calls, RATE, sleeping, lambda: fault.strike(run))
        run.close(timeout=1)
    return times


def log_scalars(run: bridge.Run) -> Callable[[int], None]:
    """`log_metrics` with 5 scalars."""
    return lambda step: run.log_metrics(SCALARS, step=step)


def log_norms(run: bridge.Run) -> Callable[[int], None]:
    """The record that `watch` appends for a 1,000-norm vector, from its float64 values on."""
    names = tuple(f"layer.{number}.weight" for number in range(NORMS))
    run._append(SeriesTable(0, 0, "gradients", names, (1,) * NORMS))
    values = np.random.default_rng(0).random(NORMS)
    return lambda step: run._append(NormVector(time.time_ns(), step, 0, pack_values(values)))


def yardstick(_step: int) -> None:
    """Plain work of about the same length."""
    json.dumps(SCALARS)


def pace(
    kinds: list[Callable[[int], None]],
    calls: int,
    rate: float,
    sleeping: bool = False,
    strike: Callable[[], None] = lambda: None,
) -> list[np.ndarray]:
    """Call each kind `calls` times, at most `rate` a second; nanoseconds of each call of each kind."""
    times = [np.zeros(calls, dtype=np.int64) for _ in kinds]
    begun = time.perf_counter()
    for step in range(calls):
        for call, taken in zip(kinds, times, strict=True):
            before = time.perf_counter_ns()
            call(step)
            taken[step] = time.perf_counter_ns() - before
        if step % 1000 == 999:
            strike()
        due = begun + (step + 1) / rate
        if sleeping:
            time.sleep(max(0.0, due - time.perf_counter()))
        while time.perf_counter() < due:  # a training thread is busy between its calls
            pass
    return times


def sdk_cases(folder: Path) -> dict[str, tuple[Callable[[int], None], Callable[[int], None]]]:
    """The everyday call of each SDK, with 5 scalars and with 1,000."""
    import mlflow
    import wandb
    from neptune_scale import Run as NeptuneRun
    from torch.utils.tensorboard import SummaryWriter

    many = {f"layer.{number}.weight": 0.5 for number in range(NORMS)}
    writer = SummaryWriter(folder / "torch")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.start_run()
    wandb_run = wandb.init(project="bench", mode="offline", dir=folder)
    neptune_run = NeptuneRun(
        project="w/p", mode="offline", run_id="bench", log_directory=str(folder), enable_console_log_capture=False
    )

    def tensorboard(values: dict[str, float]) -> Callable[[int], None]:
        def log(step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        return log

    def neptune(values: dict[str, float]) -> Callable[[int], None]:
        steps = iter(range(10**9))
        return lambda _step: neptune_run.log_metrics(values, step=next(steps))

    def wandb_log(values: dict[str, float]) -> Callable[[int], None]:
        return lambda _step: wandb_run.log(values)

    def mlflow_log(values: dict[str, float]) -> Callable[[int], None]:
        return lambda step: mlflow.log_metrics(values, step=step)

    made = {
        "torch SummaryWriter.add_scalar": tensorboard,
        "wandb.log, offline": wandb_log,
        "neptune_scale.log_metrics, offline": neptune,
        "mlflow.log_metrics, sqlite": mlflow_log,
    }
    return {name: (make(SCALARS), make(many)) for name, make in made.items()}


if __name__ == "__main__":
    main()
