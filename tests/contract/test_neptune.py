"""Neptune: the conformance suite on the SDK's local database and against a server, and what only Neptune does."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from tracker_bridge_neptune import NeptuneAdapter, NeptuneOptions

from tests import readback_neptune as readback
from tests import scripts
from tests.contract import kills
from tests.standins.loopback import Fault, Reply
from tests.standins.neptune_server import NeptuneServer
from tests.waiting import until
from tracker_bridge.adapter import Batch, HistogramItem, ParamsItem, Rejected, RetryLater, Row, RunInfo
from tracker_bridge.records import Histogram, Metrics, RunFinished, pack_values
from tracker_bridge.testing import AdapterTests, StoredRun, Trial

T = TypeVar("T")
BEGIN = 1_750_000_000_000_000_000

Run = pytest.importorskip("neptune_scale").Run


@pytest.fixture(autouse=True)
def _no_variables_of_neptune(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEPTUNE_PROJECT", "NEPTUNE_API_TOKEN", "NEPTUNE_MODE", "NEPTUNE_LOG_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


class _NeptuneTests(AdapterTests):
    adapter_type = NeptuneAdapter
    steps = (0, 10**12 - 1)
    context = ("script", "host", "user", "git_commit")


class TestNeptuneOffline(_NeptuneTests):
    """The local database, read with Neptune's own protobufs."""

    def options(self) -> Mapping[str, Any]:
        return {"mode": "offline", "log_directory": str(self.place / "neptune")}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        folder = self.place / "neptune"
        return readback.stored_run(readback.read_run(folder, ids["run_id"]), readback.uploads(folder, ids["run_id"]))


@pytest.mark.slow
class TestNeptuneOnline(_NeptuneTests):
    """A server, which applies its own rules, through the SDK's own upload process."""

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with NeptuneServer() as self.server:
            yield

    def options(self) -> Mapping[str, Any]:
        folder = str(self.place / "neptune")
        return {"mode": "async", "project": "team/suite", "api_token": self.server.token, "log_directory": folder}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        # What was on its way when an upload process ended is sent again; the server refuses it by its step rule.
        return readback.stored_run(self.server.runs[ids["run_id"]], self.server.files)


# --- what only Neptune does


def _open(folder: Path, **options: Any) -> tuple[NeptuneAdapter, RunInfo]:
    private = folder / "private"
    private.mkdir(exist_ok=True)
    options = {"mode": "offline", "log_directory": str(folder), **options}
    run = RunInfo("run-1", "neptune", "team/project", None, None, folder, private, started_ns=BEGIN)
    adapter = NeptuneAdapter(msgspec.convert(options, NeptuneOptions))
    adapter.open(run)
    return adapter, run


def _row(sequence: int, step: float, **values: float) -> Row:
    return Row(sequence, BEGIN + sequence, step, tuple(values), np.array(list(values.values())))


def _steps(run: Any, name: str) -> list[tuple[float, float]]:
    return [(step, value) for step, value, _ in run.series[name]]


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_of_the_delivery_neither_lose_nor_repeat_a_point(tmp_path: Path, seed: int) -> None:
    """SIGKILL of the delivering process at random points; each point is in Neptune's databases exactly once."""
    paths = kills.prepare(tmp_path / "queue")
    kills.deliver_with_kills(paths, "neptune", {"mode": "offline", "log_directory": str(tmp_path / "n")}, 4, seed)
    run = readback.read_run(tmp_path / "n", "trial-1")
    for name in kills.SERIES:
        assert _steps(run, name) == [(n, float(n)) for n in range(kills.STEPS)]


@pytest.mark.chaos
def test_kills_of_an_online_delivery_neither_lose_nor_repeat_a_point(tmp_path: Path) -> None:
    """The same with a server: what only the killed process' database had is sent before anything new."""
    with NeptuneServer() as server:
        paths = kills.prepare(tmp_path / "queue")
        options = {
            "mode": "async",
            "project": "team/p",
            "api_token": server.token,
            "log_directory": str(tmp_path / "n"),
        }
        kills.deliver_with_kills(paths, "neptune", options, 3, 3)
        run = server.runs["trial-1"]
        assert _steps(run, "s/07") == [(n, float(n)) for n in range(kills.STEPS)]
        assert run.attributes["tracker_bridge/status"] == "finished"
    assert not list((tmp_path / "n").glob("*/run_operations.sqlite3"))


def test_a_dead_server_is_named_and_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close gives up in its own time and names the database; when the server is there, everything arrives once."""
    monkeypatch.setattr("tracker_bridge_neptune._run.CLOSE_STALL", 0.5)
    with NeptuneServer() as server:
        port, token = server.port, server.token
    adapter, _ = _open(tmp_path, mode="async", api_token=token)
    adapter.write(Batch(tuple(_row(n, n, a=float(n)) for n in range(50))))
    began = time.monotonic()
    with pytest.raises(RetryLater, match=r"not taken 5\d operations; they are in .*run_operations.sqlite3"):
        adapter.close("finished")
    assert time.monotonic() - began < 10
    until(lambda: not multiprocessing.active_children(), 20, "the upload process ends")
    monkeypatch.undo()
    with NeptuneServer(port=port) as server:
        adapter.close("finished")
        assert _steps(server.runs["run-1"], "a") == [(n, float(n)) for n in range(50)]
        assert not server.runs["run-1"].refused
    assert not list(tmp_path.glob("*/run_operations.sqlite3"))


def test_an_upload_process_that_dies_is_replaced(tmp_path: Path) -> None:
    """The SDK's process ends for good on some errors; the adapter sends its database with another one, in order."""
    with NeptuneServer() as server:
        adapter, _ = _open(tmp_path, mode="async", api_token=server.token)
        for part in range(3):
            adapter.write(Batch(tuple(_row(n, n, a=float(n)) for n in range(10 * part, 10 * part + 10))))
            for child in multiprocessing.active_children():
                child.kill()
                child.join()
            _persist(adapter.flush)
        _persist(lambda: adapter.close("failed"))
        run = server.runs["run-1"]
        assert _steps(run, "a") == [(n, float(n)) for n in range(30)]
        assert not run.refused
        assert run.attributes["tracker_bridge/status"] == "failed"


def test_a_server_that_takes_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every request fails the SDK says nothing for minutes; flush says it, and goes on when it works again."""
    monkeypatch.setattr("tracker_bridge_neptune._run.STALL", 1.0)
    broken = Fault(Reply(503, b""))
    with NeptuneServer(lambda request: broken if request.kind == "ingest" else None) as server:
        adapter, _ = _open(tmp_path, mode="async", api_token=server.token)
        adapter.write(Batch((_row(1, 0, a=1.0),)))

        def silent() -> str:
            try:
                adapter.flush()
            except RetryLater as later:
                return later.reason
            return ""

        assert "has taken nothing for" in until(silent, 20.0)
        server.faults = None
        _persist(lambda: adapter.close("finished"))
        assert _steps(server.runs["run-1"], "a") == [(0, 1.0)]


def test_steps_and_values_that_neptune_has_no_room_for(tmp_path: Path) -> None:
    """Impossible steps are refused by themselves; neighbours in the batch are stored; a clock set back is no loss."""
    adapter, _ = _open(tmp_path)
    items = (_row(1, -1, a=1.0), _row(2, 0.000001, a=2.0), _row(3, 10**12, a=3.0), _row(4, 7, a=math.nan))
    with pytest.raises(Rejected) as refused:
        adapter.write(Batch(items))
    assert refused.value.items == (items[0], items[2])
    for item in refused.value.items:
        with pytest.raises(Rejected, match="steps from 0 to below 10"):
            adapter.write(Batch((item,)))
    adapter.write(Batch((Row(5, BEGIN - 10**9, 8, ("a",), np.ones(1)),)))
    adapter.close("finished")
    points = readback.read_run(tmp_path, "run-1").series["a"]
    assert [step for step, _, _ in points] == [0.000001, 7, 8]
    times = [time for _, _, time in points]
    assert times == sorted(times)


def test_a_histogram_that_neptune_has_no_room_for_is_counted(tmp_path: Path) -> None:
    """Counts beyond int64 are refused by name, also beside a series with a changed name (then nothing was counted)."""
    options = msgspec.convert({"mode": "offline", "log_directory": str(tmp_path / "n")}, NeptuneOptions)
    trial = Trial(tmp_path / "queue", lambda: NeptuneAdapter(options))
    edges = pack_values(np.array([-1.0, 0.0, 1.0]))
    trial.append(
        Metrics(BEGIN, 0, {"a": 1.0}),
        Metrics(BEGIN, 0, {"a\nb": 1.0}),
        Histogram(BEGIN, "hh", 11, edges, pack_values(np.array([1e300, 2.0]))),
        Histogram(BEGIN, "sum", 11, edges, pack_values(np.array([2.0**62, 2.0**62]))),
        Histogram(BEGIN, "large", 11, edges, pack_values(np.array([2.0**62, 1.0]))),
        Metrics(BEGIN, 12, {"z": 1.0}),
        RunFinished(BEGIN, "finished"),
    )
    state = trial.deliver()
    assert sum(state.dropped.values()) == 2
    assert all("2^63" in reason for reason in state.dropped)
    stored = readback.read_run(tmp_path / "n", "trial-1")
    assert [step for step, _, _ in stored.series["large"]] == [11]
    assert not {"hh", "sum"} & stored.series.keys()
    assert _steps(stored, "z") == [(12, 1.0)]


def test_an_item_that_fails_beside_a_renamed_series_is_not_taken_for_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second try writes the new name first; the next opening took that operation for the item, then lost."""
    adapter, run = _open(tmp_path)
    item = HistogramItem(2, BEGIN, "h", 1, np.array([0.0, 1.0]), np.array([5.0]))
    batch = Batch((_row(1, 0, **{"a_b-0123456789ab": 1.0}), item, _row(3, 2, z=3.0)), {"a_b-0123456789ab": "a\nb"})
    log_histograms, failures = Run.log_histograms, iter([OSError("one"), OSError("two")])

    def failing(self: Run, *arguments: Any, **more: Any) -> None:
        for failure in failures:
            raise failure
        log_histograms(self, *arguments, **more)

    monkeypatch.setattr(Run, "log_histograms", failing)
    for text in ("one", "two"):
        with pytest.raises(OSError, match=text):
            adapter.write(batch)
    again = NeptuneAdapter(adapter.options)
    again.open(run)
    again.write(batch)
    again.close("finished")
    adapter.close(None)
    stored = readback.read_run(tmp_path, "run-1")
    assert [len(stored.series[name]) for name in ("a_b-0123456789ab", "h", "z")] == [1, 1, 1]


def test_params_that_take_several_operations_are_whole_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the operations of one item the delivery ends: the first was taken for all, and `params` stayed away."""
    adapter, run = _open(tmp_path)
    batch = Batch((ParamsItem(1, BEGIN, {"lr": 0.1, "text": "x" * 300_000}), _row(2, 0, a=1.0)))
    with monkeypatch.context() as patch:
        patch.setattr(Run, "assign_files", Mock(side_effect=OSError("the end")))
        with pytest.raises(OSError, match="the end"):
            adapter.write(batch)
    again = NeptuneAdapter(adapter.options)
    again.open(run)
    again.write(batch)
    again.close("finished")
    adapter.close(None)
    stored = readback.read_run(tmp_path, "run-1")
    assert stored.attributes["lr"] == 0.1
    assert "tracker_bridge/params" in stored.attributes
    assert _steps(stored, "a") == [(0, 1.0)]


def test_tags_of_a_run_that_goes_on_hide_no_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill before the first commit of an opening that wrote tags: their operation was taken for the first row."""
    adapter, run = _open(tmp_path)
    adapter.close(None)
    run = dataclasses.replace(run, tags={"t": None}, params={"text": "x" * 300_000}, ids={"run_id": "run-1"})
    batch = Batch(tuple(_row(n, n, a=float(n)) for n in range(5)))
    killed = NeptuneAdapter(adapter.options)
    killed.open(run)
    with monkeypatch.context() as patch:
        patch.setattr("tracker_bridge_neptune._run.RunWriter._save", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            killed.write(batch)
    again = NeptuneAdapter(adapter.options)
    again.open(run)
    again.write(batch)
    again.close("finished")
    killed.close(None)
    assert _steps(readback.read_run(tmp_path, "run-1"), "a") == [(n, float(n)) for n in range(5)]


def test_a_future_sdk_without_bulk_transactions_stores_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the SDK's database object is missing, the public call stores the same points."""

    def series(folder: Path) -> dict[str, Any]:
        folder.mkdir()
        adapter, _ = _open(folder)
        adapter.write(Batch((_row(1, 0, a=1.0, b=math.inf), _row(2, 0.5, a=-2.0), _row(3, 10**9, a=3.0))))
        adapter.flush()
        adapter.close("finished")
        return {
            name: [point[:2] for point in points] for name, points in readback.read_run(folder, "run-1").series.items()
        }

    usual = series(tmp_path / "usual")
    monkeypatch.setattr("tracker_bridge_neptune._run._bulk_store", lambda run: None)
    assert series(tmp_path / "future") == usual


TWO = """
import sys
import tracker_bridge as bridge

blocks = {"adapter": "neptune", "mode": "offline", "log_directory": "n"}
backends = {"neptune": {"mode": "offline", "log_directory": "n"}, "neptune-blocks": blocks}
with bridge.init({"backends": backends}, run_id="N1", resume=len(sys.argv) > 2) as run:
    for step in range(int(sys.argv[1]), int(sys.argv[1]) + 50):
        run.log_metrics({"a": float(step)}, step=step)
"""


def test_two_backends_of_one_run_have_a_run_each(tmp_path: Path) -> None:
    """A fixed id for each, also when the run goes on; under one id Neptune had every point twice."""
    for arguments in (["0"], ["50", "resume"]):
        done = scripts.run(tmp_path, TWO, *arguments, timeout=100.0)
        assert done.returncode == 0, done.stderr
    for run_id in ("N1", "N1-neptune-blocks"):
        stored = readback.read_run(tmp_path / "n", run_id)
        assert _steps(stored, "a") == [(n, float(n)) for n in range(100)]
        assert stored.attributes["tracker_bridge/status"] == "finished"
        assert stored.attributes["tracker_bridge/run_id"] == "N1"


def test_the_random_state_is_left_alone(tmp_path: Path) -> None:
    """Opening a run draws nothing from the script's random numbers."""
    random.seed(5)
    expected = random.getstate()
    adapter, _ = _open(tmp_path)
    adapter.close("finished")
    assert random.getstate() == expected


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    """In the script's own process the SDK's upload process does not run the script again, and exit does not wait."""
    text = """
    import sys
    from pathlib import Path
    from tests.contract.test_neptune import _open, _row
    from tracker_bridge.adapter import Batch
    print("top level")
    adapter, _ = _open(Path(sys.argv[1]), mode="async", api_token=sys.argv[2])
    adapter.write(Batch((_row(1, 0, a=1.0),)))
    adapter.flush()
    if sys.argv[3] == "close":
        adapter.close("finished")
    """
    with NeptuneServer() as server:
        closed = scripts.run(tmp_path, text, str(tmp_path), server.token, "close")
        assert (closed.returncode, closed.stdout) == (0, "top level\n"), closed.stderr
        assert _steps(server.runs["run-1"], "a") == [(0, 1.0)]
        token = server.token
    began = time.monotonic()
    left = scripts.run(tmp_path, text.replace("run-1", "run-2"), str(tmp_path), token, "leave")
    assert (left.returncode, left.stdout) == (0, "top level\n"), left.stderr
    assert time.monotonic() - began < 20


def _persist(action: Callable[[], T], seconds: float = 60.0) -> T:
    """As the courier does it: again after each `RetryLater`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except RetryLater:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("given", "used"),
    [(None, "offline/tracker_bridge"), ("a", "offline/a"), ("a/b", "a/b"), ("/tutorial/a/b", "tutorial/a-b")],
)
def test_offline_project_of_any_form(given: str | None, used: str) -> None:
    """Offline there is no server whose projects must exist: any name becomes one of the SDK's form."""
    from tracker_bridge_neptune._options import NeptuneOptions, project_of

    run = RunInfo("r", "neptune", given, None, None, Path(), Path())
    assert project_of(NeptuneOptions(mode="offline"), run, "offline") == used
