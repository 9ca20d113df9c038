"""What trackers hold of a script's runs, each read with the tracker's own means: one mapping of series for each run."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests import readback_neptune, readback_wandb

Series = dict[str, list[tuple[float, float]]]
"""Name -> (step, value), in the order of steps."""


def neptune_runs(folder: Path) -> dict[str, Series]:
    """Run id -> series of every local Neptune database below `folder`."""
    found: dict[str, Series] = {}
    for path in folder.glob("*/run_operations.sqlite3"):
        with closing(sqlite3.connect(path)) as connection:
            (run_id,) = connection.execute("SELECT run_id FROM metadata").fetchone()
        run = readback_neptune.read_run(folder, run_id)
        found[run_id] = _series((name, step, value) for name, points in run.series.items() for step, value, _ in points)
    return found


def wandb_runs(folder: Path, axis: Callable[[str, Mapping[str, Any]], float | None]) -> dict[str, Series]:
    """Run id -> series of every offline W&B log below `folder`; `axis(name, row)` gives the step (None: the row's)."""
    found: dict[str, Series] = {}
    for path in folder.glob("wandb/*run-*/run-*.wandb"):
        run_id = path.stem.removeprefix("run-")
        run = readback_wandb.read_run(folder, run_id)
        points = []
        for row in run.rows:
            for name, value in row.items():
                if not name.startswith("_") and isinstance(value, (int, float)):
                    step = axis(name, row)
                    points.append((name, row["_step"] if step is None else step, value))
        found[run_id] = _series(points)
    return found


def mlflow_runs(uri: str) -> dict[str, Series]:
    """Run id -> series of every run in an MLflow store."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    found: dict[str, Series] = {}
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments):
        run_id = run.info.run_id
        points = [
            (name, metric.step, metric.value)
            for name in run.data.metrics
            for metric in client.get_metric_history(run_id, name)
        ]
        found[run_id] = _series(points)
    return found


def tensorboard_runs(folder: Path) -> dict[str, Series]:
    """Directory -> series of every directory with event files below `folder`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, Series] = {}
    for directory in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
        accumulator.Reload()
        points = [
            (tag, event.step, event.value)
            for tag in accumulator.Tags()["scalars"]
            for event in accumulator.Scalars(tag)
        ]
        found[str(directory.relative_to(folder))] = _series(points)
    return found


def as_one_writer(runs: Mapping[str, Series]) -> dict[str, Series]:
    """TensorBoard's runs as their script's writers meant them.

    `add_scalars` and `add_hparams` of one writer make directories inside its own; here their series are the writer's.
    """
    merged: dict[str, Series] = {}
    for directory in sorted(runs, key=len):
        home = next((known for known in merged if directory.startswith(f"{known}/")), None)
        if home is None:
            merged[directory] = dict(runs[directory])
            continue
        inner = directory.removeprefix(f"{home}/")
        for tag, points in runs[directory].items():
            part = inner.removeprefix(f"{tag.replace('/', '_')}_")
            merged[home][tag if part == inner else f"{tag}/{part}"] = points
    return merged


def single(series: Series) -> Series:
    """The values as TensorBoard holds them: float32."""
    import numpy as np

    return {
        name: [(step, value if math.isnan(value) else float(np.float32(value))) for step, value in points]
        for name, points in series.items()
    }


def _series(points: Iterable[tuple[str, float, float]]) -> Series:
    series: Series = {}
    for name, step, value in points:
        if isinstance(value, (int, float)):
            series.setdefault(name, []).append((float(step), float(value)))
    return {name: sorted(values, key=lambda point: point[0]) for name, values in sorted(series.items())}
