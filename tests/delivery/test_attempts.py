"""A resumed run whose journal has lost where an attempt began or ended: `run.json` still says how the run ended."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests import scripts
from tests.waiting import until
from tracker_bridge.adapter import Opened, RunInfo
from tracker_bridge.builtin import JsonlAdapter, JsonlOptions
from tracker_bridge.config import BackendConfig
from tracker_bridge.delivery import Host, Lifecycle, Plan, deliver_once
from tracker_bridge.journal import Entry, Gap, JournalReader, JournalWriter, scan
from tracker_bridge.records import Metrics, RunFinished, RunStarted
from tracker_bridge.rundir import Manifest, RunPaths, load_manifest, load_state, this_process, write_json

SMALL = 64 << 10


class Tracker(JsonlAdapter):
    """The file of one delivery; remembers how it was closed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(JsonlOptions(path=str(folder / "out.jsonl")))
        self.opened = 0
        self.closed: list[str | None] = []

    def open(self, run: RunInfo) -> Opened:
        self.opened += 1
        return super().open(run)

    def close(self, status: str | None) -> None:
        self.closed.append(status)
        super().close(status)


def begin(folder: Path, status: str | None = "finished") -> RunPaths:
    """The first attempt, which has ended with `status`."""
    paths = RunPaths(folder / "r")
    paths.root.mkdir()
    with JournalWriter.create(paths.journal, "r", max_disk=SMALL) as journal:
        journal.append(RunStarted(1, "r", 1, 1, "host"))
        journal.append(Metrics(1, 0, {"x": 0.0}))
        if status is not None:
            journal.append(RunFinished(2, status))
    mark(paths, 1, status or "crashed")
    return paths


def mark(paths: RunPaths, attempt: int, status: str) -> None:
    manifest = msgspec.convert({"run_id": "r", "created_ns": 1, "attempt": attempt, "status": status}, Manifest)
    write_json(paths.manifest, manifest)


def go_on(paths: RunPaths, attempt: int, status: str | None, *, points: int, begins: bool = True) -> None:
    """A later attempt of so many large records; `status` None: it vanished. Not `begins`: its beginning was dropped."""
    with JournalWriter.recover(paths.journal, "r", max_disk=SMALL) as journal:
        if begins:
            journal.append(RunStarted(3, "r", attempt, 1, "host"))
        for step in range(points):
            journal.append(Metrics(3, step, {f"name {n}": 1.0 for n in range(100)}))
        if status is not None:
            journal.append(RunFinished(4, status))


def records(paths: RunPaths) -> list[type]:
    return [type(item.record) if isinstance(item, Entry) else Gap for item in scan(paths.journal)]


def deliver(paths: RunPaths, tracker: Tracker, *, close: bool = True) -> None:
    deliver_once(paths.root, backend="t", adapter=tracker, close=close)


ENDS = ["finished", "failed", "killed", "crashed"]


@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("first", ["finished", "crashed"])
@pytest.mark.parametrize("delivered", [True, False])
def test_a_gap_over_the_beginning_of_an_attempt(tmp_path: Path, first: str, second: str, delivered: bool) -> None:
    """The tracker is told how the last attempt ended (naive: how the first did), and the run is done for good."""
    paths = begin(tmp_path, None if first == "crashed" else first)
    if delivered:
        deliver(paths, Tracker(tmp_path))
    go_on(paths, 2, None if second == "crashed" else second, points=400)
    mark(paths, 2, second)
    assert RunStarted not in records(paths)
    tracker, again = Tracker(tmp_path), Tracker(tmp_path)
    deliver(paths, tracker)
    assert (tracker.closed, load_state(paths, "t").closed_attempt) == ([second], 2)
    deliver(paths, again)
    assert again.opened == 0


@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("points", [0, 5])
def test_a_beginning_that_was_never_written(tmp_path: Path, second: str, points: int) -> None:
    """A full disk took the second attempt's beginning and end, and leaves no gap: `run.json` has both."""
    paths = begin(tmp_path)
    deliver(paths, Tracker(tmp_path))
    go_on(paths, 2, None, points=points, begins=False)
    mark(paths, 2, second)
    tracker = Tracker(tmp_path)
    deliver(paths, tracker)
    assert (tracker.closed, load_state(paths, "t").closed_attempt) == ([second], 2)


@pytest.mark.parametrize("second", ENDS)
def test_an_end_that_was_never_written(tmp_path: Path, second: str) -> None:
    """Only the end is missing, also where whoever delivers knows no better (naive: crashed, or left open)."""
    paths = begin(tmp_path)
    go_on(paths, 2, None, points=5)
    mark(paths, 2, second)
    tracker = Tracker(tmp_path)
    deliver(paths, tracker, close=False)
    assert (tracker.closed, load_state(paths, "t").closed_attempt) == ([second], 2)


def test_an_attempt_whose_end_is_in_a_gap_before_another_one(tmp_path: Path) -> None:
    """The ends of earlier attempts may be missing, before and behind a gap: the last one's counts."""
    paths = begin(tmp_path)
    go_on(paths, 2, "failed", points=400)
    go_on(paths, 3, None, points=5)
    mark(paths, 3, "crashed")
    assert records(paths).count(RunFinished) == 1
    tracker = Tracker(tmp_path)
    deliver(paths, tracker)
    assert (tracker.closed, load_state(paths, "t").closed_attempt) == (["crashed"], 3)


@pytest.mark.parametrize("ended_meanwhile", [False, True])
@pytest.mark.parametrize("gap", [False, True])
def test_a_live_run_stays_open(tmp_path: Path, gap: bool, ended_meanwhile: bool) -> None:
    """`sync` and `replay` up to where a live run is now tell no end, neither an earlier nor a later one."""
    paths = begin(tmp_path)
    deliver(paths, Tracker(tmp_path))
    go_on(paths, 2, None, points=400 if gap else 5, begins=gap)
    mark(paths, 2, "running")
    with JournalReader(paths.journal) as reader:
        end = reader.end()
    if ended_meanwhile:
        go_on(paths, 2, "finished", points=5, begins=False)
        mark(paths, 2, "finished")
    lifecycle, tracker = Lifecycle(), Tracker(tmp_path)
    lifecycle.end(None, until=end)
    lifecycle.limit(60)
    plan = Plan(backends=(BackendConfig(name="t", adapter="x"),))
    Host(paths, plan, lifecycle).serve(watch=None, adapters={"t": tracker})
    assert (tracker.closed, load_state(paths, "t").closed_attempt) == ([None], 1)
    mark(paths, 2, "finished")
    tracker = Tracker(tmp_path)
    deliver(paths, tracker)
    assert (tracker.closed, load_state(paths, "t").closed_attempt) == (["finished"], 2)


ADAPTER = """
import os
from tracker_bridge.adapter import RetryLater
from tracker_bridge.builtin import JsonlAdapter
class Sometimes(JsonlAdapter):
    def open(self, run):
        if os.path.exists("down"):
            raise RetryLater("the server is down")
        return super().open(run)
"""

SCRIPT = """
import os, sys
import tracker_bridge as bridge
points, how = int(sys.argv[1]), sys.argv[2]
config = {"backends": {"sometimes": {"path": "out.jsonl"}}, "queue": {"max_disk": "200KiB"},
          "delivery": {"close_timeout": 1}}
run = bridge.init(config, run_id="r", resume=how != "first")
for step in range(points):
    run.log_metrics({f"m{k}": float(step) for k in range(40)}, step=step)
if how == "killed":
    os.kill(os.getpid(), 9)
run.close("failed" if how == "failed" else "finished")
"""

STARTER = """
import os, signal
from pathlib import Path
from tracker_bridge.config import BackendConfig
from tracker_bridge.delivery import DeliveryProcess, Plan
backend = BackendConfig(name="jsonl", adapter="jsonl", options={"path": "out.jsonl"})
DeliveryProcess(Path("r").absolute(), Plan(backends=(backend,)))
os.kill(os.getpid(), signal.SIGKILL)
"""

COMMAND = "import sys; from tracker_bridge.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(("how", "told"), [("killed", "crashed"), ("failed", "failed"), ("finished", "finished")])
def test_a_resumed_run_of_which_the_beginning_was_dropped(tmp_path: Path, how: str, told: str) -> None:
    """Real processes, a tracker that was down meanwhile (naive: finished whatever came, and `waiting` for ever)."""
    path = f"{scripts.REPOSITORY}:{tmp_path}"
    (tmp_path / "sometimes_adapter.py").write_text(ADAPTER)
    info = tmp_path / "sometimes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sometimes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tracker_bridge.adapters]\nsometimes = sometimes_adapter:Sometimes\n")
    first = scripts.run(tmp_path, SCRIPT, "20", "first", PYTHONPATH=path)
    assert first.returncode == 0, first.stderr
    (tmp_path / "down").touch()
    for attempt in (2, 3):
        scripts.run(tmp_path, SCRIPT, "3000", how, PYTHONPATH=path)
        until(lambda: not scripts.processes_of(tmp_path), what="delivery has given up")
        assert load_manifest(RunPaths(tmp_path / "tracker_bridge_runs" / "r")).attempt == attempt
    (tmp_path / "down").unlink()
    synced = scripts.run(tmp_path, COMMAND, "sync", "tracker_bridge_runs/r", PYTHONPATH=path)
    assert synced.returncode == 0, synced.stdout + synced.stderr
    status = scripts.run(tmp_path, COMMAND, "status", "--json", PYTHONPATH=path)
    (run,) = json.loads(status.stdout)["runs"]
    assert [one["state"] for one in run["backends"]] == ["delivered"]
    assert scripts.statuses(tmp_path / "out.jsonl") == ["finished", told]


def test_delivery_of_a_killed_attempt_makes_way_for_the_next(tmp_path: Path) -> None:
    """Killed and begun again before its delivery process is up (naive: that follows the next one, holding the lock)."""
    paths = begin(tmp_path, None)
    write_json(paths.manifest, Manifest(run_id="r", attempt=2, created_ns=1, owner=this_process()))
    scripts.run(tmp_path, STARTER)
    until(lambda: not scripts.processes_of(paths.root), what="the delivery process of the killed attempt ends")
    assert scripts.metrics(tmp_path / "out.jsonl", "x") == [(0, 0.0)]
    assert scripts.statuses(tmp_path / "out.jsonl") == []
    now = load_manifest(paths)
    assert (now.status, now.attempt, now.owner) == ("running", 2, this_process())


def test_a_later_attempt_that_begins_while_the_first_is_delivered_is_not_ended(tmp_path: Path) -> None:
    """The first has crashed; the run goes on (naive: its tracker says crashed while the next attempt logs)."""
    paths = begin(tmp_path, None)
    with JournalWriter.recover(paths.journal, "r", max_disk=SMALL) as journal:
        journal.append(RunStarted(3, "r", 2, 1, "host"))
    write_json(paths.manifest, Manifest(run_id="r", attempt=2, created_ns=1, owner=this_process()))
    tracker, lifecycle = Tracker(tmp_path), Lifecycle()
    lifecycle.end("crashed")
    plan = Plan(backends=(BackendConfig(name="t", adapter="x"),))
    Host(paths, plan, lifecycle).serve(watch=None, adapters={"t": tracker})
    assert tracker.closed == [None]
    assert scripts.metrics(tmp_path / "out.jsonl", "x") == [(0, 0.0)]
