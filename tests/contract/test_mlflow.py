"""The MLflow adapter against MLflow: its client on a real `mlflow server` and on a sqlite store."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from mlflow import MlflowClient
from tracker_bridge_mlflow import MlflowAdapter, MlflowOptions

from tests import readback_mlflow
from tests.servers import MLFLOW_QUIET, free_port, mlflow_server, mlflow_sqlite, mlflow_template, run_mlflow
from tests.standins.fault_proxy import FaultProxy
from tests.standins.loopback import Fault, Reply
from tracker_bridge.adapter import Batch, ParamsItem, Rejected, RetryLater, Row, RunInfo, TagsItem, TextItem
from tracker_bridge.testing import AdapterTests, StoredRun

__all__ = ["mlflow_server", "mlflow_sqlite", "mlflow_template"]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MLFLOW_QUIET.items():
        monkeypatch.setenv(name, value)


class TestOnSqlite(AdapterTests):
    """Without a server."""

    adapter_type = MlflowAdapter
    statuses: ClassVar = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "crashed": "FAILED"}
    context = ("script", "host", "user", "git_commit")
    uri: str

    @pytest.fixture(autouse=True)
    def _store(self, mlflow_sqlite: str) -> None:
        self.uri = mlflow_sqlite

    def options(self) -> Mapping[str, Any]:
        return {"tracking_uri": self.uri}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        folder = self.place / f"download-{time.time_ns()}"
        folder.mkdir()
        return readback_mlflow.stored_run(MlflowClient(self.uri), ids["run_id"], folder)


class TestOnAServer(TestOnSqlite):
    """Over HTTP."""

    @pytest.fixture(autouse=True)
    def _store(self, mlflow_server: str, request: pytest.FixtureRequest) -> None:
        self.uri = mlflow_server
        self.experiment = f"{request.node.name}-{time.time_ns()}"

    def options(self) -> Mapping[str, Any]:
        return {"tracking_uri": self.uri, "experiment_name": self.experiment}


def run_info(folder: Path, **changes: Any) -> RunInfo:
    known: dict[str, Any] = {
        "run_id": f"run-{time.time_ns()}",
        "backend": "mlflow",
        "project": "nlp/bert",
        "experiment": f"tracking-{time.time_ns()}",
        "name": "a run",
        "dir": folder,
        "private_dir": folder,
        "started_ns": 1_750_000_000_000_000_000,
    }
    return RunInfo(**{**known, **changes})


def row(step: int, value: float = 1.0, *names: str) -> Row:
    names = names or ("loss",)
    return Row(step, 1_750_000_000_000_000_000 + step * 1_000_000, step, names, np.full(len(names), value))


# --- identity


def test_project_and_experiment_become_the_experiment(mlflow_sqlite: str, tmp_path: Path) -> None:
    """`project/experiment` names the experiment, the name names the run, times are those of the training."""
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    opened = adapter.open(run_info(tmp_path, experiment="gradient_tracking"))
    adapter.write(Batch((row(5),)))
    adapter.close("finished")
    client = MlflowClient(mlflow_sqlite)
    run = client.get_run(opened.ids["run_id"])
    assert client.get_experiment(run.info.experiment_id).name == "nlp/bert/gradient_tracking"
    assert run.info.run_name == "a run"
    assert (run.info.start_time, run.info.end_time) == (1_750_000_000_000, 1_750_000_000_005)


def test_a_run_that_names_nothing_is_not_in_the_default_experiment(mlflow_sqlite: str, tmp_path: Path) -> None:
    """Experiment 0 collects what nobody placed; a run of the bridge never lands there."""
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    opened = adapter.open(run_info(tmp_path, project=None, experiment=None))
    assert opened.ids["experiment_id"] != "0"
    adapter.close(None)


def test_environment_of_mlflow_is_followed(mlflow_sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME do what they do for MLflow itself."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_sqlite)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    adapter = MlflowAdapter(MlflowOptions())
    opened = adapter.open(run_info(tmp_path))
    assert opened.ids["tracking_uri"] == mlflow_sqlite
    assert MlflowClient(mlflow_sqlite).get_experiment(opened.ids["experiment_id"]).name == "from the environment"


def test_run_given_by_id_is_continued_and_not_ended(mlflow_sqlite: str, tmp_path: Path) -> None:
    """Who made a run ends it."""
    client = MlflowClient(mlflow_sqlite)
    theirs = client.create_run(client.create_experiment("theirs")).info.run_id
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite, run_id=theirs))
    opened = adapter.open(run_info(tmp_path))
    adapter.write(Batch((row(0, 7.0),)))
    adapter.close("finished")
    assert opened.ids["run_id"] == theirs
    run = client.get_run(theirs)
    assert (run.info.status, run.data.metrics) == ("RUNNING", {"loss": 7.0})


def test_relative_store_stays_where_it_was(
    mlflow_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery that goes on from another working directory finds the run of `sqlite:///mlflow.db`."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "mlflow.db").write_bytes(mlflow_template.read_bytes())
    monkeypatch.chdir(here)
    info = run_info(tmp_path)
    options = MlflowOptions(tracking_uri="sqlite:///mlflow.db")
    opened = MlflowAdapter(options).open(info)
    monkeypatch.chdir(there)
    again = MlflowAdapter(options).open(run_info(tmp_path, run_id=info.run_id, ids=opened.ids))
    assert again.ids == opened.ids
    assert not (there / "mlflow.db").exists()


def test_lost_reply_of_create_makes_no_second_run(mlflow_server: str, tmp_path: Path) -> None:
    """The server created the run and its answer got lost: the next try finds it."""
    with FaultProxy(mlflow_server) as proxy:
        lost = []

        def faults(request: Any) -> Any:
            if request.kind.endswith("/runs/create") and not lost:
                lost.append(request)
                return Fault(drop="after")
            return None

        proxy.faults = faults
        info = run_info(tmp_path)
        adapter = MlflowAdapter(MlflowOptions(tracking_uri=proxy.url))
        opened = open_patiently(adapter, info)
    client = MlflowClient(mlflow_server)
    assert len(client.search_runs([opened.ids["experiment_id"]])) == len(lost) == 1


def open_patiently(adapter: MlflowAdapter, info: RunInfo) -> Any:
    for _ in range(5):
        try:
            return adapter.open(info)
        except RetryLater:
            continue
    return adapter.open(info)


def test_four_processes_at_once_make_one_experiment(mlflow_server: str, tmp_path: Path) -> None:
    """Whoever loses the race to create the experiment uses the winner's."""
    name = f"raced-{time.time_ns()}"
    code = (
        "import pathlib, sys; from tracker_bridge.adapter import *; from tracker_bridge_mlflow import *\n"
        "here = pathlib.Path(sys.argv[1]); adapter = MlflowAdapter(MlflowOptions(tracking_uri=sys.argv[2]))\n"
        "import mlflow; print('ready', flush=True); sys.stdin.readline()\n"
        "run = RunInfo('run-' + sys.argv[4], 'mlflow', None, sys.argv[3], None, here, here)\n"
        "print(adapter.open(run).ids['experiment_id'])"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), mlflow_server, name, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        answers.append(out.strip())
    (experiment,) = set(answers)
    assert experiment != "0"
    client = MlflowClient(mlflow_server)
    assert client.get_experiment(experiment).name == name
    assert len(client.search_runs([experiment])) == 4


# --- data


def test_refused_metrics_take_no_others_with_them(mlflow_sqlite: str, tmp_path: Path) -> None:
    """One name that MLflow refuses costs that point, not the thousand others of its request."""
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    opened = adapter.open(run_info(tmp_path))
    names = tuple(f"ok/{number}" for number in range(300))
    bad = row(1, 2.0, "refused@name", *names)
    with pytest.raises(Rejected, match="refused@name") as refusal:
        adapter.write(Batch((row(0, 1.0, *names), bad, row(2, 3.0, *names))))
    assert [item.names for item in refusal.value.items if isinstance(item, Row)] == [("refused@name",)]
    history = MlflowClient(mlflow_sqlite).get_metric_history(opened.ids["run_id"], "ok/299")
    assert [(metric.step, metric.value) for metric in history] == [(0, 1.0), (1, 2.0), (2, 3.0)]


@pytest.mark.parametrize("store", ["mlflow_sqlite", "mlflow_server"])
def test_a_number_that_no_store_can_hold_costs_that_point_only(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    """Steps and times outside int64 are refused (as an error that might pass, one blocked a run on sqlite for ever)."""
    uri = request.getfixturevalue(store)
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=uri))
    opened = adapter.open(run_info(tmp_path))
    names = ("m/0", "m/1")
    edges = (2**63 - 1, -(2**63))
    good = [dataclasses.replace(row(number, 1.0, *names), step=step) for number, step in enumerate((0, *edges, 5))]
    bad = [dataclasses.replace(row(9, 2.0, *names), step=step) for step in (2**63, -(2**63) - 1, 10**30)]
    bad.append(dataclasses.replace(row(9, 2.0, *names), time_ns=2**70 * 1_000_000))
    with pytest.raises(Rejected) as refusal:
        adapter.write(Batch((*good[:2], *bad, *good[2:])))
    assert list(refusal.value.items) == bad
    for item in bad:
        with pytest.raises(Rejected, match=r"too large to convert|out of range"):
            adapter.write(Batch((item,)))
    history = MlflowClient(uri).get_metric_history(opened.ids["run_id"], "m/1")
    assert sorted(metric.step for metric in history) == sorted([0, *edges, 5])


def test_infinities_are_nowhere_the_largest_number(mlflow_sqlite: str, tmp_path: Path) -> None:
    """What MLflow's stores would make of an infinity is not in the database."""
    from tracker_bridge.records import Metrics
    from tracker_bridge.testing import Trial

    trial = Trial(tmp_path / "queue", lambda: MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite)))
    trial.append(*(Metrics(step, step, {"loss": value}) for step, value in enumerate((1.0, math.inf, -math.inf))))
    trial.deliver()
    client = MlflowClient(mlflow_sqlite)
    names = client.get_run(trial.ids["run_id"]).data.metrics
    values = [metric.value for name in names for metric in client.get_metric_history(trial.ids["run_id"], name)]
    assert sorted(values) == [1.0, 2.0, 3.0]


def test_params_with_a_dot_do_not_meet_nested_ones(mlflow_sqlite: str, tmp_path: Path) -> None:
    """`{"a.b": 1, "a": {"b": 2}}` are two params."""
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    opened = adapter.open(run_info(tmp_path))
    adapter.write(Batch((ParamsItem(0, 0, {"a.b": 1, "a": {"b": 2}}),)))
    params = MlflowClient(mlflow_sqlite).get_run(opened.ids["run_id"]).data.params
    assert params.pop("a.b") == "1"
    assert list(params.values()) == ["2"]


def test_artifact_store_out_of_order_holds_up_nothing(mlflow_sqlite: str, tmp_path: Path) -> None:
    """Files that cannot be stored are refused after a few tries; metrics, params and tags are there at once."""
    options = MlflowOptions(tracking_uri=mlflow_sqlite, artifact_location="s3://nobody-has-boto3-here/x")
    adapter = MlflowAdapter(options)
    opened = adapter.open(run_info(tmp_path))
    batch = Batch((row(0), TagsItem(1, 0, {"t": None}, (), {"t": None}), TextItem(2, 0, "note", "text", None)))
    for _ in range(2):
        with pytest.raises(RetryLater):
            adapter.write(batch)
        run = MlflowClient(mlflow_sqlite).get_run(opened.ids["run_id"])
        assert (run.data.metrics, run.data.tags["t"]) == ({"loss": 1.0}, "true")
    with pytest.raises(Rejected, match="artifact") as refusal:
        adapter.write(batch)
    assert refusal.value.items == (batch.items[2],)


# --- faults of the server


def test_dead_server_is_answered_within_seconds(tmp_path: Path) -> None:
    """Nobody listens: the courier gets its thread back soon, with a reason that names the place."""
    url = f"http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(RetryLater, match=r"127\.0\.0\.1"):
        MlflowAdapter(MlflowOptions(tracking_uri=url)).open(run_info(tmp_path))
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_server_is_asked_again(mlflow_server: str, tmp_path: Path, status: int) -> None:
    """429 and 5xx are no refusal, and Retry-After is what the courier waits; afterwards all points are stored once."""
    with FaultProxy(mlflow_server) as proxy:
        adapter = MlflowAdapter(MlflowOptions(tracking_uri=proxy.url))
        opened = adapter.open(run_info(tmp_path))
        batch = Batch(tuple(row(step, float(step)) for step in range(5)))
        proxy.faults = lambda request: Fault(Reply(status, b"busy", {"Retry-After": "7"}))
        with pytest.raises(RetryLater) as later:
            adapter.write(batch)
        assert later.value.after == pytest.approx(7, abs=1.5)
        proxy.faults = None
        adapter.write(batch)
        adapter.close("finished")
    history = MlflowClient(mlflow_server).get_metric_history(opened.ids["run_id"], "loss")
    assert [metric.step for metric in history] == list(range(5))


def test_reply_lost_after_storing_makes_no_duplicates(mlflow_server: str, tmp_path: Path) -> None:
    """The server stored a batch and its answer got lost: sending it again changes nothing."""
    with FaultProxy(mlflow_server) as proxy:
        adapter = MlflowAdapter(MlflowOptions(tracking_uri=proxy.url))
        opened = adapter.open(run_info(tmp_path))
        names = tuple(f"m/{number}" for number in range(8))
        batch = Batch(tuple(row(step, float(step), *names) for step in range(40)))
        lost: list[Any] = []

        def faults(request: Any) -> Any:
            if request.kind.endswith("/runs/log-batch") and len(lost) < 3:
                lost.append(request)
                return Fault(drop="after")
            return None

        proxy.faults = faults
        for _ in range(5):
            try:
                adapter.write(batch)
                break
            except RetryLater:
                continue
        adapter.close("finished")
    client = MlflowClient(mlflow_server)
    assert len(lost) == 3
    for name in names:
        history = client.get_metric_history(opened.ids["run_id"], name)
        assert sorted(metric.step for metric in history) == list(range(40))


def test_server_that_is_restarted_gets_the_rest(tmp_path: Path) -> None:
    """A server that goes away and comes back on the same port and store has every point once."""
    port = free_port()
    with run_mlflow(tmp_path / "server", port=port) as url:
        adapter = MlflowAdapter(MlflowOptions(tracking_uri=url))
        opened = adapter.open(run_info(tmp_path))
        adapter.write(Batch(tuple(row(step, float(step)) for step in range(10))))
    rest = Batch(tuple(row(step, float(step)) for step in range(10, 20)))
    with pytest.raises(RetryLater):
        adapter.write(rest)
    with run_mlflow(tmp_path / "server", port=port) as url:
        adapter.write(rest)
        adapter.close("failed")
        run = MlflowClient(url).get_run(opened.ids["run_id"])
        history = MlflowClient(url).get_metric_history(opened.ids["run_id"], "loss")
    assert run.info.status == "FAILED"
    assert [metric.step for metric in history] == list(range(20))


def test_slow_server_gets_smaller_requests(mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a request of the usual size takes longer than the time-out, delivery goes on with smaller ones."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with FaultProxy(mlflow_server) as proxy:
        adapter = MlflowAdapter(MlflowOptions(tracking_uri=proxy.url))
        opened = open_patiently(adapter, run_info(tmp_path))
        proxy.faults = lambda request: Fault(delay=3.0, drop="before") if len(request.body) > 30_000 else None
        names = tuple(f"m/{number}" for number in range(100))
        batch = Batch(tuple(row(step, float(step), *names) for step in range(10)))
        for _ in range(20):
            try:
                adapter.write(batch)
                break
            except RetryLater:
                continue
    history = MlflowClient(mlflow_server).get_metric_history(opened.ids["run_id"], "m/99")
    assert [metric.step for metric in history] == list(range(10))


def test_end_of_a_run_that_is_closed_by_a_later_process(mlflow_sqlite: str, tmp_path: Path) -> None:
    """The end is when the last value was logged, also if the process that says so sent nothing."""
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    info = run_info(tmp_path)
    opened = adapter.open(info)
    adapter.write(Batch((row(7),)))
    adapter.flush()
    later = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    later.open(run_info(tmp_path, run_id=info.run_id, ids=opened.ids))
    later.close("finished")
    assert MlflowClient(mlflow_sqlite).get_run(opened.ids["run_id"]).info.end_time == 1_750_000_000_007


@pytest.mark.parametrize("again", ["finished", "killed", None])
def test_a_resumed_run_is_not_called_crashed_by_its_tag(mlflow_sqlite: str, tmp_path: Path, again: str | None) -> None:
    """The tag of an attempt that crashed goes when the run goes on (it stayed: FINISHED, and the tag said crashed)."""
    info = run_info(tmp_path)
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    opened = adapter.open(info)
    adapter.close("crashed")
    client = MlflowClient(mlflow_sqlite)
    before = client.get_run(opened.ids["run_id"])
    assert (before.info.status, before.data.tags["tracker_bridge.status"]) == ("FAILED", "crashed")
    resumed = MlflowAdapter(adapter.options)
    resumed.open(run_info(tmp_path, run_id=info.run_id, ids=opened.ids, attempt=2))
    resumed.close(again)
    run = client.get_run(opened.ids["run_id"])
    expected = {"finished": "FINISHED", "killed": "KILLED", None: "RUNNING"}[again]
    assert (run.info.status, run.data.tags.get("tracker_bridge.status")) == (expected, None)


def test_deleted_run_keeps_its_data_pending(mlflow_sqlite: str, tmp_path: Path) -> None:
    """Somebody deleted the run: nothing is refused point by point, and the way out is named."""
    adapter = MlflowAdapter(MlflowOptions(tracking_uri=mlflow_sqlite))
    info = run_info(tmp_path)
    opened = adapter.open(info)
    client = MlflowClient(mlflow_sqlite)
    client.delete_run(opened.ids["run_id"])
    with pytest.raises(RetryLater):
        adapter.write(Batch((row(0),)))
    with pytest.raises(RetryLater, match="restore"):
        MlflowAdapter(adapter.options).open(run_info(tmp_path, run_id=info.run_id, ids=opened.ids))
    client.restore_run(opened.ids["run_id"])
    adapter.write(Batch((row(0),)))
    assert client.get_run(opened.ids["run_id"]).data.metrics == {"loss": 1.0}


def test_credentials_are_in_no_identifier(mlflow_server: str, tmp_path: Path) -> None:
    """What `open` returns is written to disk and shown: without user and password."""
    uri = mlflow_server.replace("http://", "http://user:hunter2@")
    opened = MlflowAdapter(MlflowOptions(tracking_uri=uri)).open(run_info(tmp_path))
    assert "hunter2" not in json.dumps([dict(opened.ids), opened.url])


def test_all_of_mlflow_is_asked_for_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mlflow-skinny only, a sqlite store is answered with the extra to install."""
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "sqlalchemy" else real(name, *rest)
    )
    with pytest.raises(RetryLater, match=r"tracker-bridge\[mlflow\]"):
        MlflowAdapter(MlflowOptions(tracking_uri="sqlite:///x.db")).open(run_info(tmp_path))
