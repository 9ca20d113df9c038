"""Runs of the real MLflow, in its sqlite store, its file store and behind its server."""

from __future__ import annotations

import math
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.importers.helpers import (
    flipped,
    of_type,
    params_of,
    points_of,
    read_hostile,
    same,
    status_of,
    tags_of,
)
from tracker_bridge.importers import Damage, ForeignFormatError, ForeignRun, Reading, discover
from tracker_bridge.records import Artifact, Metrics, Record, RunStarted, Text

KIND = "mlflow"

WRITER = """
import math, sys
import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric

def main(uri):
    client = MlflowClient(uri)
    experiment = client.create_experiment("team/exp")
    run = client.create_run(experiment, run_name="nice name", start_time=1_700_000_000_000).info.run_id
    child = client.create_run(experiment, tags={"mlflow.parentRunId": run}, run_name="child").info.run_id
    gone = client.create_run(experiment).info.run_id
    client.delete_run(gone)
    start = 1_700_000_000_000
    points = [Metric(f"m/{i}", step * 10.0 + i, start + step, step) for step in range(100) for i in range(3)]
    bad = [math.nan, math.inf, -math.inf, 1.0]
    points += [Metric("bad", value, 1_700_000_001_000 + i, i) for i, value in enumerate(bad)]
    points += [Metric("late", float(i), 1_700_000_002_000 + i, step) for i, step in enumerate((5, 3, 3, -1))]
    for start in range(0, len(points), 500):
        client.log_batch(run, metrics=points[start : start + 500])
    client.log_param(run, "lr", 0.1)
    client.log_param(run, "opt.name", "adam \\u00e9")
    client.log_param(run, "url", "https://user:hunter22@example.org/repo")
    client.set_tag(run, "kind", "baseline")
    client.set_tag(run, "mlflow.note.content", "some notes")
    client.set_tag(run, "mlflow.user", "me")
    client.log_text(run, "weights", "models/a/weights.txt")
    client.log_text(run, "top", "top.txt")
    client.set_terminated(run, "FAILED", 1_700_000_009_000)
    client.set_terminated(child, "KILLED")
    client.create_run(experiment, run_name="running")

if __name__ == "__main__":
    main(sys.argv[1])
"""

ENVIRON = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}


def write(folder: Path, uri: str) -> None:
    script = folder / "script.py"
    script.write_text(WRITER)
    done = subprocess.run(
        [sys.executable, str(script), uri], cwd=folder, capture_output=True, text=True, timeout=100, env=ENVIRON
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlflow-sql")
    write(folder, "sqlite:///mlflow.db")
    return folder


@pytest.fixture(scope="module")
def file_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlflow-files")
    write(folder, "mlruns")
    return folder


def named(path: Path | str) -> dict[str, ForeignRun]:
    return {run.name or "": run for run in discover(KIND, path)}


def check_everything(path: Path | str, scratch: Path) -> list[Record]:
    runs = named(path)
    assert set(runs) == {"nice name", "child", "running"}
    run = runs["nice name"]
    assert (run.project, run.experiment) == (None, "team/exp")
    reading = Reading(scratch=scratch)
    records = list(run.records(reading))
    points = points_of(records)
    for index in range(3):
        assert points.pop(f"m/{index}") == [(step, step * 10.0 + index) for step in range(100)]
    expected = {
        "bad": [(0, math.nan), (1, math.inf), (2, -math.inf), (3, 1.0)],
        "late": [(5, 0.0), (3, 1.0), (3, 2.0), (-1, 3.0)],
    }
    assert same(points, expected)  # type: ignore[arg-type]
    rows = of_type(records, Metrics)
    assert [row.time_ns for row in rows if "m/0" in row.values] == [(1_700_000_000_000 + s) * 10**6 for s in range(100)]
    assert all(len(row.values) == 3 for row in rows if "m/0" in row.values)
    assert params_of(records) == {
        "lr": "0.1",
        "opt.name": "adam é",
        "url": "https://<secret>@example.org/repo",
    }
    assert tags_of(records) == {"kind": "baseline"}
    assert [(t.name, t.text) for t in of_type(records, Text)] == [("notes", "some notes")]
    artifacts = {a.name: Path(a.path).read_text() for a in of_type(records, Artifact)}
    assert artifacts == {"models/a/weights.txt": "weights", "top.txt": "top"}
    assert not reading.left_out
    assert status_of(records) == "failed"
    (started,) = of_type(records, RunStarted)
    assert started.time_ns == 1_700_000_000_000 * 10**6
    assert started.provenance["user"] == "me"
    child = list(runs["child"].records())
    assert status_of(child) == "killed"
    assert of_type(child, RunStarted)[0].provenance["parent_run"] == run.identity[0]
    assert status_of(list(runs["running"].records())) == "crashed"
    return records


def test_a_sqlite_store_comes_back_value_for_value(sqlite_store: Path, tmp_path: Path) -> None:
    """Metrics with NaN, infinities, late and repeated steps, params, tags, notes, artifacts, nesting and status."""
    records = check_everything(sqlite_store, tmp_path)
    again = check_everything(f"sqlite:///{sqlite_store}/mlflow.db", tmp_path)
    assert repr(again) == repr(records)


def test_a_file_store_comes_back_value_for_value(file_store: Path, tmp_path: Path) -> None:
    """The store that MLflow itself refuses since 3.13 is read just the same."""
    check_everything(file_store, tmp_path)
    check_everything(file_store / "mlruns", tmp_path)
    check_everything((file_store / "mlruns").as_uri(), tmp_path)


def test_a_store_that_was_moved_keeps_its_artifacts_and_ids(sqlite_store: Path, tmp_path: Path) -> None:
    """Artifact locations are absolute; the defaults beside the moved database are found, and ids stay."""
    moved = tmp_path / "moved"
    shutil.copytree(sqlite_store, moved)
    records = list(named(moved)["nice name"].records())
    assert {a.name for a in of_type(records, Artifact)} == {"models/a/weights.txt", "top.txt"}
    assert all(str(moved) in a.path for a in of_type(records, Artifact))
    ids = {name: run.run_id for name, run in named(moved).items()}
    assert ids == {name: run.run_id for name, run in named(sqlite_store).items()}


@pytest.fixture(scope="module")
def server(sqlite_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(sqlite_store, folder, dirs_exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", "sqlite:///mlflow.db"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRON, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                break
        except OSError:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.2)
    yield url
    os.killpg(process.pid, 15)
    process.wait(30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_tracking_server_gives_the_same_run(server: str, sqlite_store: Path, tmp_path: Path) -> None:
    """Behind MLflow's own client the same run comes out as from its database."""
    records = check_everything(server, tmp_path)
    direct = check_everything(sqlite_store, tmp_path)
    assert repr(of_type(records, Metrics)) == repr(of_type(direct, Metrics))


def test_oddities_of_the_sqlite_store(sqlite_store: Path, tmp_path: Path) -> None:
    """Steps that MLflow let through as bytes or reals come back; a value that is none is damage and costs itself."""
    shutil.copytree(sqlite_store, tmp_path / "s")
    db = sqlite3.connect(tmp_path / "s" / "mlflow.db")
    run_id = named(tmp_path / "s")["running"].identity[0]
    insert = "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)"
    rows = [("x", 1.0, 1, (3).to_bytes(8, "little")), ("x", 2.0, 2, 1.5), ("x", "junk", 3, 1), ("x", 4.0, 4, "step")]
    db.executemany(insert, [(key, value, at, run_id, step) for key, value, at, step in rows])
    db.commit()
    db.close()
    run = named(tmp_path / "s")["running"]
    with pytest.raises(ForeignFormatError, match=r"mlflow.db.*metric 'x'"):
        list(run.records())
    damage: list[Damage] = []
    assert points_of(list(run.records(Reading(on_damage=damage.append)))) == {"x": [(3, 1.0), (1.5, 2.0)]}
    assert len(damage) == 2


def test_artifacts_elsewhere_are_left_where_they_are(sqlite_store: Path, tmp_path: Path) -> None:
    """An artifact location that leads out of the store, and a link in it, are not followed."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "id_rsa").write_text("private")
    store = tmp_path / "s"
    shutil.copytree(sqlite_store, store)
    run = named(store)["nice name"]
    db = sqlite3.connect(store / "mlflow.db")
    db.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (str(secrets), run.identity[0]))
    db.commit()
    db.close()
    folder = next(store.rglob("top.txt")).parent
    (folder / "link").symlink_to(secrets / "id_rsa")
    reading = Reading()
    artifacts = of_type(list(run.records(reading)), Artifact)
    assert {a.name for a in artifacts} == {"models/a/weights.txt", "top.txt"}
    assert reading.left_out == {"files outside of the imported path": 1}
    shutil.rmtree(folder)
    reading = Reading()
    assert not of_type(list(run.records(reading)), Artifact)
    assert reading.left_out == {"files outside of the imported path": 1}


def test_hostile_stores_are_errors_that_name_them(sqlite_store: Path, file_store: Path, tmp_path: Path) -> None:
    """Cut and flipped databases, broken metric files and YAML are refused with their path and nothing worse."""
    data = (sqlite_store / "mlflow.db").read_bytes()
    path = tmp_path / "mlflow.db"
    for size in (0, 1, 100, 5000, len(data) // 2):
        path.write_bytes(data[:size])
        assert read_hostile(KIND, path)[1], size
    for _, changed in flipped(data, seed=7, count=40):
        path.write_bytes(changed)
        read_hostile(KIND, path)
    store = tmp_path / "files"
    shutil.copytree(file_store / "mlruns", store)
    metric = next(store.rglob("m/0"))
    metric.write_text(metric.read_text() + "garbage\n1 2\n9 nan 5 extra model\n\x00\n")
    with pytest.raises(ForeignFormatError, match=r"m/0.*line 101"):
        [list(run.records()) for run in discover(KIND, store)]
    damage: list[Damage] = []
    records = list(named(store)["nice name"].records(Reading(on_damage=damage.append)))
    assert len(points_of(records)["m/0"]) == 102
    assert len(damage) == 2
    meta = metric.parents[2] / "meta.yaml"
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
    )
    for text in ("[", "just text", bomb + "[", "status: !!python/object/apply:os.system [touch executed]"):
        meta.write_text(text)
        read_hostile(KIND, store)
    assert not Path("executed").exists()
