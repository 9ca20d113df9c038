"""More than a tracker takes at once: 100,000 series, rows of more than 10 MB, ids that are too long."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests import readback_neptune, readback_wandb
from tests.contract import test_jsonl
from tests.readback_tensorboard import accumulate
from tests.servers import mlflow_sqlite, mlflow_template
from tests.standins.neptune_server import NeptuneServer
from tests.standins.wandb_server import API_KEY, WandbServer
from tracker_bridge import registry
from tracker_bridge.records import Metrics, NormVector, RunFinished, SeriesTable, pack_values
from tracker_bridge.testing import Trial

__all__ = ["mlflow_sqlite", "mlflow_template"]

BEGIN = 1_750_000_000_000_000_000
LARGEST_ROW = 10_383_360
"""Bytes of a row that W&B's server takes."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trial(folder: Path, kind: str, options: Mapping[str, Any], run_id: str = "r") -> Trial:
    cls = registry.adapter_class(kind)
    return Trial(folder / "queue", lambda: cls(msgspec.convert(options, cls.options_type)), run_id=run_id)


def many_series(one: Trial, count: int) -> None:
    """Three norm vectors of `count` layers; the value is layer + step."""
    names = tuple(f"model.block.{number:06}.weight" for number in range(count))
    one.append(
        SeriesTable(BEGIN, 0, "gradients", names, (1,) * count),
        *(NormVector(BEGIN + step, step, 0, pack_values(np.arange(count) + step), total=1.0) for step in range(3)),
        RunFinished(BEGIN, "finished"),
    )
    assert one.deliver().dropped == {}


def expected(number: int) -> list[tuple[float, float]]:
    return [(step, float(number + step)) for step in range(3)]


def test_hundred_thousand_series_in_tensorboard(tmp_path: Path) -> None:
    """All points of all series are in the event files."""
    one = trial(tmp_path, "tensorboard", {"log_dir": "runs"})
    many_series(one, 100_000)
    read = accumulate(Path(one.ids["log_dir"]))
    tags = [tag for tag in read.Tags()["scalars"] if tag.endswith(".weight")]
    assert len(tags) == 100_000
    for number in (0, 50_000, 99_999):
        points = [(event.step, event.value) for event in read.Scalars(f"gradients/model.block.{number:06}.weight")]
        assert points == expected(number)


def test_hundred_thousand_series_in_jsonl(tmp_path: Path) -> None:
    """All points of all series are in the file."""
    one = trial(tmp_path, "jsonl", {"path": str(tmp_path / "r.jsonl")})
    many_series(one, 100_000)
    metrics = test_jsonl.stored_lines(tmp_path / "r.jsonl")["metrics"]
    layers = [name for name in metrics if name.endswith(".weight")]
    assert len(layers) == 100_000
    assert all([point[:2] for point in metrics[name]] == expected(at) for at, name in enumerate(layers))


def once(one: Trial, count: int) -> dict[str, float]:
    """One norm vector of `count` layers, and a second point for three of them; the first points by series."""
    names = tuple(f"model.block.{number:06}.weight" for number in range(count))
    again = {f"gradients/{name}": -1.0 for name in names[:3]}
    one.append(
        SeriesTable(BEGIN, 0, "gradients", names, (1,) * count),
        NormVector(BEGIN, 0, 0, pack_values(np.arange(count)), total=1.0),
        Metrics(BEGIN + 1, 1, again),
        RunFinished(BEGIN, "finished"),
    )
    state = one.deliver(timeout=100)
    assert (state.dropped, state.points) == ({}, count + 6)
    return {f"gradients/{name}": float(at) for at, name in enumerate(names)}


def test_hundred_thousand_series_in_wandb(tmp_path: Path) -> None:
    """They are rows of one step, each of which a server takes; the second points are in the next row."""
    one = trial(tmp_path, "wandb", {"mode": "offline"})
    wanted = once(one, 100_000)
    rows = readback_wandb.read_run(tmp_path, one.ids["run_id"]).rows
    assert [row["global_step"] for row in rows] == [*(0 for _ in rows[1:]), 1]
    assert max(len(json.dumps(row)) for row in rows) < LARGEST_ROW
    got = {name: value for row in rows[:-1] for name, value in row.items() if name.endswith(".weight")}
    assert got == wanted
    assert [rows[-1][name] for name in list(wanted)[:3]] == [-1.0] * 3


def test_hundred_thousand_series_in_neptune(tmp_path: Path) -> None:
    """All points are in the local database."""
    one = trial(tmp_path, "neptune", {"mode": "offline", "log_directory": "neptune"})
    wanted = once(one, 100_000)
    series = readback_neptune.read_run(tmp_path / "neptune", "r").series
    got = {name: [point[:2] for point in points] for name, points in series.items() if name.endswith(".weight")}
    second = {name: [(1.0, -1.0)] for name in list(wanted)[:3]}
    assert got == {name: [(0.0, value), *second.get(name, [])] for name, value in wanted.items()}


@pytest.mark.slow
def test_ten_thousand_series_in_mlflow(tmp_path: Path, mlflow_sqlite: str) -> None:
    """All points are in the sqlite store, whose own code takes 0.3 ms of a processor for each new series."""
    one = trial(tmp_path, "mlflow", {"tracking_uri": mlflow_sqlite})
    wanted = once(one, 10_000)
    with closing(sqlite3.connect(mlflow_sqlite.removeprefix("sqlite:///"))) as store:
        rows = store.execute("SELECT key, step, value FROM metrics WHERE key LIKE '%.weight' ORDER BY step").fetchall()
        latest = dict(store.execute("SELECT key, value FROM latest_metrics WHERE key LIKE '%.weight'"))
    again = dict.fromkeys(list(wanted)[:3], -1.0)
    assert {name: value for name, step, value in rows if step == 0} == wanted
    assert {name: value for name, step, value in rows if step == 1} == again
    assert latest == {**wanted, **again}


@pytest.mark.parametrize(("length", "count"), [(150, 90_000), (5_000, 3_000)], ids=["many", "long"])
def test_a_step_of_more_than_ten_megabytes_in_wandb(tmp_path: Path, length: int, count: int) -> None:
    """It becomes several rows of that step, each of which the server takes, and later rows follow."""
    names = tuple(f"{'layer.' * (length // 6)}{number:06}" for number in range(count))
    values = {name: float(at) for at, name in enumerate(names)}
    assert len(json.dumps(values)) > 14_000_000
    settings = {"base_url": "", "api_key": API_KEY, "x_file_stream_transmit_interval": 1}
    with WandbServer() as server:
        settings["base_url"] = server.url
        one = trial(tmp_path, "wandb", {"mode": "online", "settings": settings})
        one.append(Metrics(BEGIN, 0, values), Metrics(BEGIN + 1, 1, {"loss": 1.0}), RunFinished(BEGIN + 2, "finished"))
        assert one.deliver().dropped == {}
        rows = server.runs[one.ids["run_id"]].rows
    assert [row["global_step"] for row in rows] == [*(0 for _ in rows[1:]), 1]
    assert len(rows) > 2
    assert max(len(json.dumps(row)) for row in rows) < LARGEST_ROW
    got = {name: value for row in rows[:-1] for name, value in row.items() if name.startswith("layer.")}
    assert got == values
    assert rows[-1]["loss"] == 1.0


def test_long_ids_that_differ_at_their_end_are_two_runs_in_wandb(tmp_path: Path) -> None:
    """W&B's ids have at most 64 characters; what is cut off still tells ranks and sweeps apart."""
    ids = [f"{'sweep-' * 12}rank{rank}" for rank in range(2)]
    found = []
    for run_id in ids:
        one = trial(tmp_path, "wandb", {"mode": "offline"}, run_id)
        one.append(Metrics(BEGIN, 0, {"loss": float(len(found))}), RunFinished(BEGIN, "finished"))
        one.deliver()
        found.append(one.ids["run_id"])
    assert all(len(run_id) <= 64 for run_id in found)
    for number, run_id in enumerate(found):
        assert [row["loss"] for row in readback_wandb.read_run(tmp_path, run_id).rows] == [float(number)]


def test_points_that_neptunes_server_refuses_are_reported(tmp_path: Path) -> None:
    """A server that has a larger step already refuses a point after it was sent; that is among the backend's drops."""
    with NeptuneServer() as server:
        options = {"mode": "async", "project": "team/p", "api_token": server.token, "log_directory": "neptune"}
        first = trial(tmp_path / "a", "neptune", options)
        first.append(*(Metrics(BEGIN + step, step, {"loss": 1.0}) for step in range(10)))
        assert first.deliver().dropped == {}
        again = trial(tmp_path / "b", "neptune", options)
        again.append(*(Metrics(BEGIN + 100 + step, step, {"loss": 2.0}) for step in range(8, 12)))
        state = again.deliver()
        run = server.runs["r"]
        assert [point[:2] for point in run.series["loss"]] == [
            *((step, 1.0) for step in range(10)),
            (10, 2.0),
            (11, 2.0),
        ]
        assert run.refused["SERIES_STEP_NON_INCREASING"] == 2
    assert sum(state.dropped.values()) > 0
    assert all(reason.startswith("Neptune: ") for reason in state.dropped)
