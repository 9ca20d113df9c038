"""Delivered points per second of the TensorBoard and MLflow adapters beside the SDKs' everyday calls.

    python tests/benchmarks/bench_adapters_tb_mlflow.py [--series 1000] [--steps 200] [--mlflow-steps 40]

Both sides of a ratio take turns in one process, a block of steps each, so that a busy machine slows both. "delivered"
is the adapter alone; "journal to tracker" is the whole way from the journal through the courier; "script" is what the
training thread pays: the SDK's call against the append to the journal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tracker_bridge_mlflow import MlflowAdapter, MlflowOptions
from tracker_bridge_tensorboard import TensorBoardAdapter, TensorBoardOptions

from tests.servers import MLFLOW_QUIET, run_mlflow
from tracker_bridge.adapter import Adapter, Batch, Row, RunInfo
from tracker_bridge.delivery import deliver_once
from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import NormVector, SeriesTable, pack_values
from tracker_bridge.rundir import Manifest, RunPaths, write_json

Block = Callable[[int, int], None]
"""Deliver the steps from (inclusive) to (exclusive)."""


def main() -> None:
    """Run what was asked for and print a line for each ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--mlflow-steps", type=int, default=40)
    parser.add_argument("--only", choices=["tensorboard", "sqlite", "server"])
    asked = parser.parse_args()
    os.environ.update(MLFLOW_QUIET)
    names = tuple(f"gradients/encoder.layer.{number // 16}.part.{number % 16}.weight" for number in range(asked.series))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if asked.only in (None, "tensorboard"):
            tensorboard(place, names, asked.steps)
        if asked.only in (None, "sqlite"):
            mlflow("mlflow on sqlite", f"sqlite:///{place}/mlflow.db", place / "sqlite", names, asked.mlflow_steps)
        if asked.only in (None, "server"):
            with run_mlflow(place / "server") as url:
                mlflow("mlflow on a server", url, place / "http", names, asked.mlflow_steps)


def tensorboard(place: Path, names: tuple[str, ...], steps: int) -> None:
    """`SummaryWriter.add_scalar` for each value, against the adapter."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(place / "everyday"))
    values = norms(len(names))

    def everyday(first: int, last: int) -> None:
        for step in range(first, last):
            for name, value in zip(names, values, strict=True):
                writer.add_scalar(name, value, step)
        writer.flush()

    adapter = TensorBoardAdapter(TensorBoardOptions(log_dir=str(place / "bridge")))
    with opened(adapter, place / "tb") as ours:
        report("tensorboard, delivered", len(names), compare(everyday, deliver(ours, names), steps, block=10))
    writer.close()
    whole_way("tensorboard", place / "queue", names, steps * 5, adapter)


def mlflow(title: str, uri: str, place: Path, names: tuple[str, ...], steps: int) -> None:
    """One `mlflow.log_metrics` a step, against the adapter; and the same call against the journal's append."""
    import mlflow as sdk

    place.mkdir()
    sdk.set_tracking_uri(uri)
    sdk.set_experiment("everyday")
    values = norms(len(names))
    data = dict(zip(names, values.tolist(), strict=True))
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=uri))
    append = appender(place / "journal", names)
    calls: list[float] = []
    appends: list[float] = []
    with sdk.start_run(), opened(adapter, place) as ours:

        def everyday(first: int, last: int) -> None:
            for step in range(first, last):
                calls.append(timed(lambda step=step: sdk.log_metrics(data, step=step, synchronous=True)))
                appends.append(timed(lambda step=step: append(step)))

        report(f"{title}, delivered", len(names), compare(everyday, deliver(ours, names), steps, block=20))
    call, own = statistics.median(calls), statistics.median(appends)
    print(f"{title}, script: log_metrics {call * 1e3:.1f} ms, append {own * 1e6:.1f} us, ratio {call / own:.0f}x")


def compare(everyday: Block, ours: Block, steps: int, block: int) -> tuple[float, float]:
    """Seconds per step of both, block after block in turns; the order in a turn changes.

    The turn before the first is not counted: a new `mlflow server` answers several times slower for half a minute.
    """
    everyday(0, block)
    ours(0, block)
    steps += block
    seconds = [0.0, 0.0]
    for turn, first in enumerate(range(block, steps, block)):
        sides = [(0, everyday), (1, ours)]
        for side, run in sides if turn % 2 else reversed(sides):
            seconds[side] += timed(lambda run=run, first=first: run(first, min(first + block, steps)))
    return seconds[0] / (steps - block), seconds[1] / (steps - block)


def deliver(adapter: Adapter[Any], names: tuple[str, ...]) -> Block:
    """The adapter's write and flush of a block."""
    values = norms(len(names))
    now = time.time_ns()

    def block(first: int, last: int) -> None:
        rows = tuple(Row(step, now + step * 1_000_000, step, names, values * (step + 1)) for step in range(first, last))
        most = max(1, adapter.capabilities.max_points // len(names))
        for start in range(0, len(rows), most):
            adapter.write(Batch(rows[start : start + most]))
        adapter.flush()

    return block


def whole_way(title: str, place: Path, names: tuple[str, ...], steps: int, adapter: Adapter[Any]) -> None:
    """From a filled journal through the courier into the tracker."""
    paths = RunPaths(place / "run")
    paths.backends.mkdir(parents=True)
    write_json(paths.manifest, Manifest(run_id="run", created_ns=1))
    append = appender(paths.journal, names)
    for step in range(steps):
        append(step)
    seconds = timed(lambda: deliver_once(paths.root, backend="b", adapter=adapter, timeout=600.0))
    print(f"{title}, journal to tracker: {steps * len(names) / seconds / 1e6:.2f} million points/s")


def appender(folder: Path, names: tuple[str, ...]) -> Callable[[int], None]:
    """Appends the norm vector of a step to a new journal."""
    journal = JournalWriter.create(folder, "run")
    journal.append(SeriesTable(0, 0, "gradients", names, (1,) * len(names)))
    packed = pack_values(norms(len(names)))
    return lambda step: journal.append(NormVector(time.time_ns(), step, 0, packed))


@contextlib.contextmanager
def opened(adapter: Adapter[Any], place: Path) -> Iterator[Adapter[Any]]:
    """The adapter, open."""
    place.mkdir(parents=True, exist_ok=True)
    adapter.open(RunInfo("bench", "bench", "bench", "adapters", None, place, place, started_ns=time.time_ns()))
    yield adapter
    adapter.close("finished")


def norms(count: int) -> Any:
    """Some gradient norms."""
    return np.random.default_rng(0).lognormal(size=count)


def timed(run: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def report(title: str, series: int, seconds: tuple[float, float]) -> None:
    """One line: both rates and their ratio."""
    theirs, ours = (series / each for each in seconds)
    print(f"{title}: SDK {theirs:,.0f} points/s, bridge {ours:,.0f} points/s, ratio {ours / theirs:.1f}x", flush=True)


if __name__ == "__main__":
    main()
