"""What a logging call costs the training thread, while trackers are well, dead or hanging; beside the SDKs' own calls.

Prints p50, p99.9 and the largest in microseconds of `log_metrics` with 5 scalars and of the record of a 1,000-norm
vector, at about 1,000 calls a second, for each kind of fault; then the same calls through each SDK.

    python tests/benchmarks/bench_logging.py [--calls 100000] [--sdk-calls 300] [--sleep]
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import tracker_bridge as bridge
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
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", WANDB_SILENT="true", WANDB_MODE="offline")
    with tempfile.TemporaryDirectory() as folder, silent_server() as silent:
        os.chdir(folder)
        well = {"tensorboard": {"log_dir": "runs"}}
        cases: dict[str, dict[str, object]] = {
            "no backend": {},
            "TensorBoard": well,
            "+ MLflow refused": {**well, "mlflow": {"tracking_uri": "http://127.0.0.1:9"}},
            "+ MLflow never answers": {**well, "mlflow": {"tracking_uri": f"http://127.0.0.1:{silent}"}},
            "disk limit reached": {"mlflow": {"tracking_uri": "http://127.0.0.1:9"}},
        }
        columns = f"{'p50':>9} {'p99.9':>9} {'max':>10}"
        print(f"{'microseconds':36} 5 scalars {columns}    1,000 norms {columns}")
        for name, backends in cases.items():
            limit = "4MiB" if name.startswith("disk") else "2GiB"
            scalars = bridge_case(backends, limit, arguments.calls, log_scalars, arguments.sleep)
            norms = bridge_case(backends, limit, arguments.calls // 4, log_norms, arguments.sleep)
            show(f"tracker_bridge, {name}", scalars, norms)
        for name, case in sdk_cases(Path(folder)).items():
            show(name, *(pace(call, arguments.sdk_calls, 1e9) for call in case))


def show(name: str, scalars: np.ndarray, norms: np.ndarray) -> None:
    """One line."""
    left, right = (np.percentile(times / 1e3, [50, 99.9, 100]) for times in (scalars, norms))
    cells = [f"{p50:9.2f} {late:9.1f} {largest:10.1f}" for p50, late, largest in (left, right)]
    print(f"{name:36}           {cells[0]}                {cells[1]}", flush=True)


def bridge_case(
    backends: dict[str, object],
    limit: str,
    calls: int,
    make: Callable[[bridge.Run], Callable[[int], None]],
    sleeping: bool,
) -> np.ndarray:
    """Nanoseconds of each call."""
    run = bridge.init({"backends": backends or "none", "queue": {"max_disk": limit}})
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        run.wait_until_open(5)
        times = pace(make(run), calls, RATE, sleeping)
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


def pace(call: Callable[[int], None], calls: int, rate: float, sleeping: bool = False) -> np.ndarray:
    """Call `calls` times, at most `rate` a second; nanoseconds of each."""
    times = np.empty(calls, dtype=np.int64)
    begun = time.perf_counter()
    for step in range(calls):
        before = time.perf_counter_ns()
        call(step)
        times[step] = time.perf_counter_ns() - before
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


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """A port that accepts and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


if __name__ == "__main__":
    main()
