"""W&B: the conformance suite on offline logs and against a server, and what only W&B does."""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import psutil
import pytest
from tracker_bridge_wandb import WandbAdapter, WandbOptions
from tracker_bridge_wandb._log import LogTail
from tracker_bridge_wandb._options import run_id_of
from tracker_bridge_wandb._values import cells

from tests import readback_wandb as readback
from tests import scripts
from tests.contract import kills
from tests.importers.helpers import of_type, points_of, records_of
from tests.standins.loopback import Fault, Reply
from tests.standins.wandb_server import API_KEY, WandbServer
from tracker_bridge.adapter import AlertItem, Batch, RetryLater, Row, RunInfo, TextItem
from tracker_bridge.records import Text
from tracker_bridge.testing import AdapterTests, StoredRun

T = TypeVar("T")
BEGIN = 1_750_000_000_000_000_000

pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def _no_variables_of_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROJECT", "API_KEY", "MODE", "DIR", "ENTITY", "RUN_ID", "NAME", "BASE_URL", "TAGS", "RUN_GROUP"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)


@pytest.fixture
def killed_service() -> Iterator[None]:
    """For tests that kill W&B's service: the SDK never waits for it, and drops its process object with a warning."""
    yield
    for thing in gc.get_objects():
        if type(thing) is subprocess.Popen and "wandb" in str(thing.args):  # asking some of torch for its class warns
            thing.poll()


class _WandbTests(AdapterTests):
    adapter_type = WandbAdapter
    statuses: Mapping[str, str] = {"finished": "0", "failed": "1", "killed": "255", "crashed": "2"}
    context = ("script", "arguments", "host", "user", "git_commit")


class TestWandbOffline(_WandbTests):
    """The `.wandb` logs, read with wandb's own protobufs."""

    def options(self) -> Mapping[str, Any]:
        return {"mode": "offline", "dir": str(self.place / "logs")}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        return readback.stored_run(readback.read_run(self.place / "logs", ids["run_id"]))


class TestWandbOnline(_WandbTests):
    """A server."""

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with WandbServer() as self.server:
            yield

    def options(self) -> Mapping[str, Any]:
        settings = {"base_url": self.server.url, "api_key": API_KEY, "x_file_stream_transmit_interval": 1}
        return {"mode": "online", "dir": str(self.place / "logs"), "settings": settings}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        run = self.server.runs[ids["run_id"]]
        assert not run.resent
        return readback.stored_run(run)


# --- what only W&B does


def _open(folder: Path, seconds: float = 30.0, **options: Any) -> tuple[WandbAdapter, RunInfo]:
    private = folder / "private"
    private.mkdir(exist_ok=True)
    options = {"mode": "offline", "dir": str(folder), **options}
    run = RunInfo("run-1", "wandb", "project", None, None, folder, private, started_ns=BEGIN)
    adapter = WandbAdapter(msgspec.convert(options, WandbOptions))
    # The service may not have let go of the id of the test before.
    _persist(lambda: adapter.open(run), seconds)
    return adapter, run


def _row(sequence: int, step: float, **values: float) -> Row:
    return Row(sequence, BEGIN + sequence, step, tuple(values), np.array(list(values.values())))


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("_timestamp", "_runtime")} for row in rows]


def _online(server: WandbServer, **settings: Any) -> dict[str, Any]:
    settings = {"base_url": server.url, "api_key": API_KEY, "x_file_stream_transmit_interval": 1, **settings}
    return {"mode": "online", "settings": settings}


def test_a_step_that_comes_in_several_batches_is_one_row(tmp_path: Path) -> None:
    """Values of one step are one row although a flush lies between; a repeated series gets a row of its own."""
    adapter, _ = _open(tmp_path)
    adapter.write(Batch((_row(1, 0, a=1.0),)))
    adapter.flush()
    adapter.write(Batch((_row(2, 0, b=2.0), _row(3, 1, a=3.0))))
    adapter.flush()
    adapter.write(Batch((_row(4, 1, a=4.0),)))
    adapter.flush()
    adapter.close("finished")
    assert _plain(readback.read_run(tmp_path, "run-1").rows) == [
        {"_step": 0, "global_step": 0, "a": 1.0, "b": 2.0},
        {"_step": 1, "global_step": 1, "a": 3.0},
        {"_step": 2, "global_step": 1, "a": 4.0},
    ]


def test_fractional_steps_are_exact_on_the_axis(tmp_path: Path) -> None:
    """Fractions stand on the axis as they were logged, in the log and in what the importer makes of it."""
    steps = [0.0, 0.1, 1.5, 2, 2.0, 2.0000000000000004, 1e-300, -0.25, 2**53 + 1]
    adapter, _ = _open(tmp_path)
    adapter.write(Batch(tuple(_row(n, step, a=float(n)) for n, step in enumerate(steps))))
    adapter.write(Batch((_row(20, 3.5, a=20.0), TextItem(21, BEGIN, "note", "half", 3.5))))
    adapter.close("finished")
    run = readback.read_run(tmp_path, "run-1")
    rows = [(row["global_step"], row["a"]) for row in run.rows]
    assert rows == [*((step, float(n)) for n, step in enumerate(steps)), (3.5, 20.0)]
    assert [type(step) for step, _ in rows][2:5] == [float, int, int]
    assert run.rows[-1].keys() >= {"a", "note"}
    assert run.summary["global_step"] == 3.5
    records = records_of("wandb", readback.logs(tmp_path, "run-1")[0].parent)
    # The importer reads the axis as W&B's server does: float64.
    assert points_of(records)["a"] == [(float(step), value) for step, value in rows]
    assert [(text.name, text.step) for text in of_type(records, Text)] == [("note", 3.5)]


@pytest.mark.parametrize("others", [[], [math.nan, math.inf, -math.inf]])
def test_numbers_are_exact_in_a_cell(others: list[float]) -> None:
    """Every float64 comes back bit for bit, beside values that are not finite or not."""
    values = np.array([0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 2.0**53 + 2, 1 / 3, 1e-7, *others])
    names = tuple(map(str, range(len(values))))
    read = np.array([json.loads(text) for text in cells(names, values).values()], dtype=np.float64)
    assert read.tobytes() == values.tobytes()


def test_only_the_service_sees_the_setting_of_its_garbage_collector(tmp_path: Path) -> None:
    """The process that delivers (it may be the training itself) keeps its environment; the user's own value wins."""
    script = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        import psutil, wandb
        from tracker_bridge.adapter import RunInfo
        from tracker_bridge_wandb import WandbAdapter, WandbOptions
        before = dict(os.environ)
        adapter = WandbAdapter(WandbOptions(mode="offline", dir="."))
        Path("private").mkdir()
        adapter.open(RunInfo("r", "wandb", "p", None, None, Path.cwd(), Path("private").absolute(), started_ns=1))
        own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        assert own.items() <= before.items(), own.items() - before.items()
        (core,) = [p for p in psutil.Process().children(recursive=True) if "wandb-core" in p.name()]
        print(core.environ()["GOGC"])
        adapter.close("finished")
        wandb.teardown()
        """
    )
    for given, expected in (({}, "400"), ({"GOGC": "50"}, "50")):
        folder = tmp_path / expected
        folder.mkdir()
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"} | given
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=90
        )
        assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_a_row_that_would_be_too_long_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with more than a row can hold is several rows of that step, not a row that W&B drops."""
    monkeypatch.setattr("tracker_bridge_wandb._run.MAX_ROW", 2_000)
    adapter, _ = _open(tmp_path)
    adapter.write(Batch(tuple(_row(1, 0, **{f"part{part}/{n:02}": float(n) for n in range(50)}) for part in range(5))))
    adapter.close("finished")
    rows = readback.read_run(tmp_path, "run-1").rows
    assert len(rows) > 1
    assert {row["global_step"] for row in rows} == {0}
    assert sum(name.startswith("part") for row in rows for name in row) == 250


def test_a_future_sdk_without_whole_rows_stores_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the fast path is missing, the public call stores the same rows."""
    from wandb.sdk.interface.interface_sock import InterfaceSock

    odd = {"nan": math.nan, "inf": math.inf}

    def rows(folder: Path) -> list[dict[str, Any]]:
        folder.mkdir()
        adapter, _ = _open(folder)
        adapter.write(Batch((_row(1, 5, a=1.0, **odd), _row(2, 3, a=2.5), _row(3, 3, a=3.0), _row(4, 9, b=1e300))))
        adapter.flush()
        adapter.close("finished")
        # Through the public call the service itself writes 1.0 as 1.
        stored = readback.read_run(folder, "run-1").rows
        return [{name: repr(float(value)) for name, value in sorted(row.items())} for row in _plain(stored)]

    usual = rows(tmp_path / "usual")
    monkeypatch.setattr(InterfaceSock, "_publish_history", None)
    assert rows(tmp_path / "future") == usual
    assert len(usual) == 4


def test_the_summary_has_the_last_value_of_every_series(tmp_path: Path) -> None:
    """The run's summary, which W&B's tables show, is complete although rows are written without it."""
    adapter, _ = _open(tmp_path)
    adapter.write(Batch((_row(1, 0, a=1.0, b=2.0), _row(2, 1, a=math.nan))))
    adapter.close("failed")
    run = readback.read_run(tmp_path, "run-1")
    assert math.isnan(run.summary["a"])
    assert {key: run.summary[key] for key in ("b", "global_step", "tracker_bridge_status")} == {
        "b": 2.0,
        "global_step": 1,
        "tracker_bridge_status": "failed",
    }


@pytest.mark.usefixtures("killed_service")
def test_a_service_that_dies_loses_nothing(tmp_path: Path) -> None:
    """wandb-core is killed after rows were handed over and not yet confirmed: they are sent again, once."""
    adapter, _ = _open(tmp_path)
    adapter.write(Batch(tuple(_row(n, n, a=float(n)) for n in range(100))))
    adapter.flush()
    adapter.write(Batch(tuple(_row(n, n, a=float(n)) for n in range(100, 200))))
    _kill_service()
    batch = Batch(tuple(_row(n, n, a=float(n)) for n in range(200, 300)))
    _persist(lambda: adapter.write(batch))
    _persist(adapter.flush)
    _persist(lambda: adapter.close("finished"))
    rows = readback.read_run(tmp_path, "run-1").rows
    assert [(row["_step"], row["a"]) for row in rows] == [(n, float(n)) for n in range(300)]


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_of_the_delivery_neither_lose_nor_repeat_a_row(tmp_path: Path, seed: int) -> None:
    """SIGKILL of the delivering process at random points; afterwards each point is in W&B's logs exactly once."""
    paths = kills.prepare(tmp_path / "queue")
    kills.deliver_with_kills(paths, "wandb", {"mode": "offline", "dir": str(tmp_path)}, 4, seed)
    rows = readback.read_run(tmp_path, "trial-1").rows
    for name in kills.SERIES:
        assert [(row["global_step"], row[name]) for row in rows] == [(n, float(n)) for n in range(kills.STEPS)]


@pytest.mark.chaos
def test_kills_of_an_online_delivery_neither_lose_nor_repeat_a_row(tmp_path: Path) -> None:
    """The same with a server: rows that only the killed process' log had are sent by the next one."""
    with WandbServer() as server:
        paths = kills.prepare(tmp_path / "queue")
        kills.deliver_with_kills(paths, "wandb", {**_online(server), "dir": str(tmp_path)}, 4, 3)
        run = server.runs["trial-1"]
        assert [(row["global_step"], row["s/07"]) for row in run.rows] == [(n, float(n)) for n in range(kills.STEPS)]
        assert run.exit_code == 0


def test_one_fatal_reply_is_noticed_and_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a 403 the SDK uploads nothing more and says `Synced`; the adapter sees that and sends it again."""
    monkeypatch.setattr("tracker_bridge_wandb._run.ARRIVAL_TIMEOUT", 0.5)
    refuse = Fault(Reply(403, b"{}"))
    with WandbServer(
        lambda request: refuse if request.kind == "file_stream" and request.number <= 1 else None
    ) as server:
        adapter, _ = _open(tmp_path, **_online(server))
        adapter.write(Batch(tuple(_row(n, n, a=float(n)) for n in range(20))))
        adapter.flush()
        with pytest.raises(RetryLater, match=r"W&B has 0 of 20 rows; all are in .*run-run-1.wandb"):
            adapter.close("finished")
        _persist(lambda: adapter.close("finished"))
        run = server.runs["run-1"]
        assert [row["a"] for row in run.rows] == [float(n) for n in range(20)]
        assert (run.exit_code, run.resent, list(server.runs)) == (0, 0, ["run-1"])


def test_a_failed_start_does_not_use_up_the_id(tmp_path: Path) -> None:
    """W&B refuses the first start; the next one has the same id, and there is one run."""
    refuse = Fault(Reply(403, b"{}"))
    with WandbServer(
        lambda request: refuse if request.kind == "UpsertBucket" and request.number <= 1 else None
    ) as server:
        (tmp_path / "private").mkdir()
        options = msgspec.convert({**_online(server), "dir": str(tmp_path)}, WandbOptions)
        adapter = WandbAdapter(options)
        run = RunInfo("run-1", "wandb", "project", None, None, tmp_path, tmp_path / "private", started_ns=BEGIN)
        with pytest.raises(RetryLater, match="W&B could not be started"):
            adapter.open(run)
        opened = _persist(lambda: adapter.open(run))
        adapter.write(Batch((_row(1, 0, a=1.0),)))
        adapter.flush()
        adapter.close("finished")
        assert opened.ids["run_id"] == "run-1"
        assert opened.url == f"{server.url}/loopback/project/runs/run-1"
        assert [run.rows[0]["a"] for run in server.runs.values()] == [1.0]


def test_a_run_of_the_script_is_left_alone(tmp_path: Path) -> None:
    """In the script's own process neither a failed start nor the end of our run touches the script's W&B run."""
    script = """
    import sys, msgspec, numpy as np, wandb
    from pathlib import Path
    from tests.contract.test_wandb import _open, _row, _persist
    from tracker_bridge.adapter import Batch, RetryLater
    folder = Path(sys.argv[1])
    own = wandb.init(mode="offline", dir=str(folder), id="own", settings=wandb.Settings(console="off"))
    own.log({"mine": 1}, step=7)
    try:
        settings = {"base_url": sys.argv[2], "api_key": "0123456789" * 4, "init_timeout": 2}
        _open(folder, 0.0, mode="online", settings=settings)
    except RetryLater as later:
        print("refused", later)
    adapter, _ = _open(folder, id="bridge")
    adapter.write(Batch((_row(1, 0, a=1.0), _row(2, 1, a=2.0))))
    adapter.flush()
    adapter.close("finished")
    assert wandb.run is own
    own.log({"mine": 2}, step=8)
    own.finish()
    """
    with WandbServer(lambda request: Fault(Reply(404, b"{}"))) as server:
        environment = {**os.environ, "PYTHONPATH": str(kills.ROOT), "WANDB_SILENT": "true"}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), server.url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout
    assert [(row["_step"], row["mine"]) for row in readback.read_run(tmp_path, "own").rows] == [(7, 1), (8, 2)]
    assert [row["a"] for row in readback.read_run(tmp_path, "bridge").rows] == [1.0, 2.0]


TWO = """
import json, shutil, sys
import tracker_bridge as bridge

backends = {
    "wandb": {"mode": "offline"},
    "wandb-team": {"adapter": "wandb", "mode": "offline", "project": "team"},
    "wandb-same": {"adapter": "wandb", "mode": "offline"},
}
begin, resume = int(sys.argv[1]), sys.argv[2] == "resume"
if sys.argv[2] == "anew":
    shutil.rmtree("tracker_bridge_runs")
with bridge.init({"project": "p", "backends": backends}, run_id="L1", resume=resume) as run:
    for step in range(begin, begin + 100):
        run.log_metrics({"a": float(step)}, step=step)
for name in backends:
    state = json.load(open(f"tracker_bridge_runs/L1/backends/{name}/state.json"))
    print(name, state["health"], state["last_error"], state["dropped"])
"""


def test_several_backends_of_one_run_have_a_run_each(tmp_path: Path) -> None:
    """Each has a fixed id of its own and ends as the run did, also when it goes on, or begins anew by its id only.

    With one id for all, they ended each other's runs (exit code 1 in a third of the cases), and ids became random.
    """
    ids = {"wandb": "L1", "wandb-team": "L1-wandb-team", "wandb-same": "L1-wandb-same"}
    for attempt, how in enumerate(("first", "resume", "anew")):
        done = scripts.run(tmp_path, TWO, str(100 * attempt), how, timeout=100.0)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{name} closed None {{}}" for name in ids], done.stderr
        manifest = json.loads((tmp_path / "tracker_bridge_runs" / "L1" / "run.json").read_text())
        assert {name: backend["ids"]["run_id"] for name, backend in manifest["backends"].items()} == ids
    for name, run_id in ids.items():
        run = readback.read_run(tmp_path, run_id)
        assert [row["a"] for row in run.rows] == [float(step) for step in range(300)]
        assert (run.exit_code, run.project) == (0, "team" if name == "wandb-team" else "p")
    # No empty runs beside them, one log for each attempt.
    assert len(list(tmp_path.glob("wandb/*run-*"))) == 3 * len(ids)


def test_which_id_a_backend_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of its kind the run's, others that with their name; an earlier opening's or a configured one wins."""

    def id_of(backend: str, ids: Mapping[str, str] | None = None, run_id: str = "r", **options: str) -> str:
        run = RunInfo(
            run_id, backend, None, None, None, tmp_path, tmp_path, ids=ids or {}, first_of_kind=backend == "z"
        )
        return run_id_of(WandbOptions(**options), run)

    assert [id_of(name) for name in ("z", "wandb", "team")] == ["r", "r-wandb", "r-team"]
    assert id_of("team", {"run_id": "r"}) == "r"
    assert id_of("team", id="mine") == "mine"
    long = [id_of("team", run_id="x" * 63 + end) for end in "ab"]
    assert len({*long, id_of("wandb", run_id="x" * 63 + "a")}) == 3
    assert max(map(len, long)) <= 64
    monkeypatch.setenv("WANDB_RUN_ID", "env")
    assert [id_of("z"), id_of("team")] == ["env", "env-team"]


def test_backends_with_one_configured_id_do_not_end_each_other(tmp_path: Path) -> None:
    """The second is told what to do and waits; opening it ended the first one's run with exit code 1."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    first, _ = _open(folders[0])
    with pytest.raises(RetryLater, match="`id` of its own"):
        _open(folders[1], 0.0)
    first.write(Batch(tuple(_row(n, n, a=float(n)) for n in range(10))))
    first.flush()
    first.close("finished")
    second, run = _open(folders[1])
    second.write(Batch((_row(1, 0, a=5.0),)))
    second.close("failed")
    assert run.run_id == "run-1"
    stored = [readback.read_run(folder, "run-1") for folder in folders]
    assert [[row["a"] for row in one.rows] for one in stored] == [[float(n) for n in range(10)], [5.0]]
    assert [one.exit_code for one in stored] == [0, 1]


def test_a_failed_start_beside_another_run_does_not_use_up_the_id(tmp_path: Path) -> None:
    """While another run of the process is open, too, the id is usable again; it was replaced by a random one."""
    other, _ = _open(tmp_path, id="other")
    other.write(Batch((_row(1, 0, a=1.0),)))
    refuse = Fault(Reply(403, b"{}"))
    with WandbServer(
        lambda request: refuse if request.kind == "UpsertBucket" and request.number <= 2 else None
    ) as server:
        (tmp_path / "second").mkdir()
        adapter = WandbAdapter(msgspec.convert({**_online(server), "dir": str(tmp_path / "second")}, WandbOptions))
        run = RunInfo("run-1", "wandb", "p", None, None, tmp_path, tmp_path / "second", started_ns=BEGIN)
        for _ in range(2):
            with pytest.raises(RetryLater, match="W&B could not be started"):
                adapter.open(run)
        opened = adapter.open(run)
        adapter.write(Batch((_row(1, 0, a=2.0),)))
        adapter.close("finished")
        assert opened.ids["run_id"] == "run-1"
        assert [(run_id, stored.rows[0]["a"]) for run_id, stored in server.runs.items()] == [("run-1", 2.0)]
        assert server.runs["run-1"].exit_code == 0
    other.write(Batch((_row(2, 1, a=3.0),)))
    other.close("finished")
    stored = readback.read_run(tmp_path, "other")
    assert ([row["a"] for row in stored.rows], stored.exit_code) == ([1.0, 3.0], 0)
    assert len(readback.logs(tmp_path, "other")) == 1


@pytest.mark.usefixtures("killed_service")
def test_an_end_that_the_service_did_not_write_is_written_again(tmp_path: Path) -> None:
    """wandb-core dies when all rows are in the log: closing said nothing, and the run had no end."""
    adapter, _ = _open(tmp_path)
    adapter.write(Batch(tuple(_row(n, n, a=float(n)) for n in range(10))))
    adapter.flush()
    _kill_service()
    _persist(lambda: adapter.close("failed"))
    run = readback.read_run(tmp_path, "run-1")
    assert [row["a"] for row in run.rows] == [float(n) for n in range(10)]
    assert run.exit_code == 1
    assert run.summary["tracker_bridge_status"] == "failed"


@pytest.mark.usefixtures("killed_service")
def test_a_service_that_dies_under_two_backends_loses_nothing(tmp_path: Path) -> None:
    """Both go on in a new one, under their own ids."""
    openings = [_open(tmp_path, id="one"), _open(_made(tmp_path / "two"), id="two")]
    for part in range(3):
        batches = [Batch(tuple(_row(n, n, a=float(n)) for n in range(100 * part, 100 * part + 100))) for _ in openings]
        if part == 1:
            _kill_service()
        deadline = time.monotonic() + 60
        waiting = list(zip([adapter for adapter, _ in openings], batches, strict=True))
        while waiting:
            assert time.monotonic() < deadline
            adapter, batch = waiting.pop(0)
            try:
                adapter.write(batch)
                adapter.flush()
            except RetryLater:
                waiting.append((adapter, batch))
    for adapter, _ in openings:
        _persist(functools.partial(adapter.close, "finished"))
    for folder, run_id in ((tmp_path, "one"), (tmp_path / "two", "two")):
        run = readback.read_run(folder, run_id)
        assert [(row["_step"], row["a"]) for row in run.rows] == [(n, float(n)) for n in range(300)]
        assert run.exit_code == 0


def test_the_status_of_a_run_that_goes_on_is_not_the_last_ones(tmp_path: Path) -> None:
    """A resumed run that is left open is running (it stayed `crashed`); its end replaces that."""
    adapter, run = _open(tmp_path)
    for status, shown in (("crashed", "crashed"), (None, "running"), ("finished", "finished")):
        adapter.close(status)
        stored = readback.read_run(tmp_path, "run-1")
        assert stored.summary["tracker_bridge_status"] == shown
        adapter = WandbAdapter(adapter.options)
        _persist(functools.partial(adapter.open, run))
    adapter.close("finished")
    assert readback.read_run(tmp_path, "run-1").exit_code == 0


def test_an_alert_is_one_of_wandb(tmp_path: Path) -> None:
    """Alerts are W&B's own alerts."""
    adapter, _ = _open(tmp_path)
    adapter.write(Batch((AlertItem(1, BEGIN, "explosion", 0, "critical", "Exploding", "grew", ("w",)),)))
    adapter.flush()
    adapter.close("finished")
    assert readback.read_run(tmp_path, "run-1").alerts == [{"title": "Exploding", "text": "grew"}]


def test_the_log_reader_stops_at_a_torn_end(tmp_path: Path) -> None:
    """Rows are counted as they become whole, whatever the cut."""
    adapter, _ = _open(tmp_path)
    names = {f"series/{n:03}": float(n) for n in range(300)}
    adapter.write(Batch(tuple(_row(n, n, **names) for n in range(12))))
    adapter.close("finished")
    whole = readback.logs(tmp_path, "run-1")[0].read_bytes()
    torn = tmp_path / "torn.wandb"
    torn.write_bytes(whole[:7])
    tail = LogTail(torn)
    seen = []
    for end in range(7, len(whole) + 1000, 1000):
        torn.write_bytes(whole[:end])
        seen.append(tail.look())
    assert (tail.rows, tail.ended) == (12, True)
    assert seen == sorted(seen)
    assert len(set(seen)) > 5


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _kill_service() -> None:
    cores = [child for child in psutil.Process().children(recursive=True) if "wandb-core" in child.name()]
    assert cores
    for core in cores:
        core.kill()
    psutil.wait_procs(cores, timeout=10)


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
