"""`tracker-bridge import`, `replay` and `prune` as a user runs them, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.importers.helpers import points_of, records_of
from tests.importers.test_tensorboard import NAME, VERSION, scalar, write_events
from tests.scripts import environment, start
from tracker_bridge.journal import JournalWriter
from tracker_bridge.reader import read
from tracker_bridge.records import Metrics, RunFinished, RunStarted, Text
from tracker_bridge.rundir import FileLock, Manifest, RunPaths, load_manifest, this_process, write_json


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Program = Callable[..., Result]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def run(*arguments: str) -> Result:
        env = environment(COLUMNS="200")
        command = [sys.executable, "-m", "tracker_bridge", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def make_tree(root: Path, runs: int) -> Path:
    for index in range(runs):
        events = [VERSION, *(scalar("loss", step, step / 2, 1.7e9 + step) for step in range(5))]
        write_events(root / f"run{index}", events, NAME.replace("1700000000", str(1700000000 + index)))
    return root


def make_run(root: Path, *, ended_ns: int = 1_700_000_009_000_000_000, status: str = "finished") -> RunPaths:
    paths = RunPaths(root)
    paths.files.mkdir(parents=True)
    with JournalWriter.create(paths.journal, root.name) as journal:
        journal.append(RunStarted(1_700_000_000_000_000_000, root.name, 1, 1, "h"))
        for step in range(20):
            journal.append(Metrics(1_700_000_000_000_000_000 + step, step, {"loss": step / 2, "a/acc": 1.0}))
        journal.append(Text(1_700_000_001_000_000_000, "note", "hello", 3))
        journal.append(RunFinished(ended_ns, status))
    manifest = Manifest(
        run_id=root.name, status="finished", created_ns=1_700_000_000_000_000_000, finished_ns=ended_ns, project="p"
    )
    write_json(paths.manifest, manifest)
    return paths


# --- import


def test_import_reports_and_can_be_repeated(program: Program, tmp_path: Path) -> None:
    """A tree is imported with a report and exit status 0; again, everything is skipped; one damaged run is status 1."""
    make_tree(tmp_path / "logs", 3)
    listed = program("import", "tensorboard", "logs", "--dry-run", "--json")
    assert (listed.code, len(listed.json["runs"])) == (0, 3)
    assert not (tmp_path / "tracker_bridge_runs").exists()
    first = program("import", "tensorboard", "logs", "--json")
    assert (first.code, first.err) == (0, "")
    assert [len(first.json[key]) for key in ("imported", "skipped", "failed")] == [3, 0, 0]
    again = program("import", "tensorboard", "logs")
    assert again.code == 0
    assert "0 imported, 3 skipped, 0 failed" in again.out
    path = next((make_tree(tmp_path / "more", 4) / "run3").iterdir())
    path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    bad = program("import", "tensorboard", "more")
    assert bad.code == 1
    assert "1 failed" in bad.out
    assert str(path.name) in bad.out.replace("\n", "")
    salvaged = program("import", "tensorboard", "more", "--salvage", "--json")
    assert salvaged.code == 0
    assert salvaged.json["imported"][0]["damage"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tensorbord", "."), "did you mean 'tensorboard'"),
        (("tensorboard", "nowhere"), "nowhere"),
        (("mlflow", "."), "no store of MLflow"),
    ],
)
def test_import_of_what_is_not_there_is_wrong_usage(program: Program, arguments: tuple[str, ...], message: str) -> None:
    """A kind or path that cannot be meant is exit status 2 with one line that says why."""
    done = program("import", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("place", ["file/queue", "file"])
def test_a_queue_that_cannot_be_written_to_is_one_line(program: Program, tmp_path: Path, place: str) -> None:
    """No traceback: what is in the way, and the status of wrong usage."""
    make_tree(tmp_path / "tree", 2)
    (tmp_path / "file").write_text("")
    done = program("import", "tensorboard", "tree", "--dir", place)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert str(tmp_path / "file") in done.err


def test_import_takes_files_from_named_folders_only(program: Program, tmp_path: Path) -> None:
    """A file elsewhere is left out and counted, and taken with --files-under."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model").write_text("weights")
    (tmp_path / "data").mkdir()
    line = {"time_ns": 1, "step": None, "artifact": {"model": str(tmp_path / "elsewhere" / "model")}}
    (tmp_path / "data" / "run.jsonl").write_text(json.dumps(line) + "\n")
    first = program("import", "jsonl", "data")
    assert (first.code, "left out" in first.out) == (0, True)
    shutil.rmtree(tmp_path / "tracker_bridge_runs")
    second = program("import", "jsonl", "data", "--files-under", "elsewhere", "--json")
    assert second.json["left_out"] == {}
    assert len(read(second.json["imported"][0]["dir"]).artifacts()) == 1


def test_import_shows_progress_on_a_terminal_only(tmp_path: Path) -> None:
    """On a terminal there is a counter on standard error; results are the same."""
    make_tree(tmp_path / "logs", 3)
    outer, inner = pty.openpty()
    try:
        command = [sys.executable, "-m", "tracker_bridge", "import", "tensorboard", "logs", "--json"]
        env = environment(TERM="xterm")
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=inner)
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait(60) == 0
        process.stdout.close()
        os.set_blocking(outer, False)
        shown = os.read(outer, 1 << 16)
    finally:
        os.close(inner)
        os.close(outer)
    assert len(json.loads(out)["imported"]) == 3
    assert b"looking for runs" in shown or b"imported" in shown


# --- replay


def jsonl_config(tmp_path: Path, **routes: Any) -> Path:
    path = tmp_path / "target.json"
    path.write_text(
        json.dumps({"backends": {"copy": {"adapter": "jsonl", "path": str(tmp_path / "{run_id}.out"), **routes}}})
    )
    return path


def test_replay_is_idempotent_and_keeps_its_place_in_the_run(program: Program, tmp_path: Path) -> None:
    """Twice sends once; the target is another backend of the run, beside its own; what was sent equals the journal."""
    paths = make_run(tmp_path / "tracker_bridge_runs" / "r1")
    config = jsonl_config(tmp_path)
    first = program("replay", "r1", "--to", str(config), "--json")
    assert first.code == 0, first.err
    (outcome,) = first.json["runs"]
    assert (outcome["complete"], outcome["pending"], outcome["error"]) == (True, 0, None)
    assert outcome["target"].startswith("replay-copy-")
    content = (tmp_path / "r1.out").read_bytes()
    again = program("replay", "r1", "--to", str(config), "--json")
    assert again.json["runs"][0]["sent"] == 0
    assert (tmp_path / "r1.out").read_bytes() == content
    copy = tmp_path / "copied.jsonl"
    copy.write_bytes(content)
    points = points_of(records_of("jsonl", copy))
    assert points["loss"] == [(step, step / 2) for step in range(20)]
    assert list(load_manifest(paths).backends) == [outcome["target"]]


def test_replay_with_another_route_is_another_target(program: Program, tmp_path: Path) -> None:
    """The same tracker with other routes gets the run anew, with those routes, as a second run."""
    make_run(tmp_path / "tracker_bridge_runs" / "r1")
    one = program("replay", "r1", "--to", str(jsonl_config(tmp_path)), "--json").json["runs"][0]
    config = jsonl_config(tmp_path, route={"include": ["a/*"], "prefix": "moved/"})
    two = program("replay", "r1", "--to", str(config), "--json").json["runs"][0]
    assert one["target"] != two["target"]
    lines = [json.loads(line) for line in (tmp_path / f"r1-{two['target']}.out").read_text().splitlines()]
    assert {name for line in lines for name in line.get("metrics", {})} == {"moved/a/acc"}


def test_a_dry_run_sends_nothing_and_says_what_does_not_fit(program: Program, tmp_path: Path) -> None:
    """`--dry-run` counts records and points and names what the tracker has no place for, without touching anything."""
    paths = make_run(tmp_path / "tracker_bridge_runs" / "r1")
    done = program("replay", "r1", "--to", "mlflow", "--dry-run", "--json")
    assert done.code == 0, done.err
    (outcome,) = done.json["runs"]
    assert (outcome["pending"], outcome["points"], outcome["sent"]) == (23, 40, 0)
    assert not list(paths.root.glob("backends/*"))
    assert not (tmp_path / "mlflow.db").exists()
    assert load_manifest(paths).backends == {}


LIVE = """
import os, time
import tracker_bridge as bridge
run = bridge.init(backends={"jsonl": {"path": "own.out"}}, run_id="r1")
step = 0
while not os.path.exists("stop"):
    run.log_metrics({"loss": 1 / (step + 1)}, step=step)
    step += 1
    if step == 100:
        run.flush(20)
        print("going", flush=True)
    time.sleep(0.0005)
delivery = run.close(timeout=20)
assert delivery.complete, delivery
"""


def losses_in(path: Path) -> list[int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["step"] for line in lines if "metrics" in line]


def test_a_live_run_can_be_replayed_beside_its_own_delivery(program: Program, tmp_path: Path) -> None:
    """While the run logs and is delivered, a replay sends what is there and ends; later the rest, nothing twice.

    In a tracker that the run is logged to it is a second run, here a file of its own.
    """
    config = jsonl_config(tmp_path)
    process = start(tmp_path, LIVE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        sent = 0
        for _ in range(2):
            done = program("replay", "r1", "--to", str(config), "--json", "--timeout", "60")
            assert done.code == 0, done.err
            (outcome,) = done.json["runs"]
            assert (outcome["live"], outcome["complete"], outcome["error"]) == (True, True, None)
            assert outcome["sent"] > 0
            (copy,) = tmp_path.glob("r1-replay-copy-*.out")
            steps = losses_in(copy)
            assert steps == list(range(len(steps)))
            assert len(steps) > sent
            sent = len(steps)
        assert "still running" in program("replay", "r1", "--to", str(config)).out
        (tmp_path / "stop").touch()
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    last = program("replay", "r1", "--to", str(config), "--json")
    assert (last.code, last.json["runs"][0]["live"]) == (0, False)
    own = losses_in(tmp_path / "own.out")
    assert own == list(range(len(own)))
    assert losses_in(copy) == own
    assert program("sync").out.startswith("Nothing is pending")


def test_two_replays_to_one_target_at_once_are_one(program: Program, tmp_path: Path) -> None:
    """While one sends, the other says so at once with status 1, and the run cannot be pruned; afterwards both work."""
    paths = make_run(tmp_path / "tracker_bridge_runs" / "r1")
    config = jsonl_config(tmp_path)
    assert program("replay", "r1", "--to", str(config)).code == 0
    (target,) = paths.backends.glob("replay-*")
    with FileLock(paths.replay_lock(target.name)):
        busy = program("replay", "r1", "--to", str(config), "--json")
        pruned = program("prune", "--older-than", "0s", "--force", "--json")
    assert busy.code == 1
    assert busy.json["runs"][0]["error"] == "is being replayed there already"
    assert pruned.json["runs"][0]["kept"] == "is being delivered"
    assert program("replay", "r1", "--to", str(config)).code == 0


def test_replay_to_a_tracker_that_cannot_work_stops_and_says_why(program: Program, tmp_path: Path) -> None:
    """A target that stays down ends the replay long before its time-out, with the tracker's reason; others get all."""
    make_run(tmp_path / "tracker_bridge_runs" / "r1")
    (tmp_path / "file").write_text("")
    backends = {
        "good": {"adapter": "jsonl", "path": str(tmp_path / "good.out")},
        "bad": {"adapter": "jsonl", "path": str(tmp_path / "file" / "x.out")},
    }
    (tmp_path / "both.json").write_text(json.dumps({"backends": backends}))
    done = program("replay", "r1", "--to", "both.json", "--json")
    assert done.code == 1
    good, bad = done.json["runs"]
    assert (good["complete"], good["pending"]) == (True, 0)
    assert bad["pending"] > 0
    assert "file" in bad["error"]
    assert (tmp_path / "good.out").exists()
    (tmp_path / "file").unlink()
    again = program("replay", "r1", "--to", "both.json", "--json")
    assert (again.code, again.json["runs"][0]["sent"], again.json["runs"][1]["sent"]) == (0, 0, 23)


def test_replay_to_what_is_no_target_is_wrong_usage(program: Program, tmp_path: Path) -> None:
    """An unknown tracker names the nearest one; a run that is not there likewise."""
    make_run(tmp_path / "tracker_bridge_runs" / "r1")
    for arguments, message in (
        (("r1", "--to", "tensorbord"), "tensorboard"),
        (("r2", "--to", "jsonl"), "r1"),
        (("r1", "--to", "none.yaml"), "none.yaml"),
    ):
        done = program("replay", *arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert message in done.err


def test_an_interrupted_replay_goes_on(program: Program, tmp_path: Path) -> None:
    """With no time left nothing is lost: the next call delivers the rest, and nothing twice."""
    make_run(tmp_path / "tracker_bridge_runs" / "r1")
    config = jsonl_config(tmp_path)
    cut = program("replay", "r1", "--to", str(config), "--timeout", "0", "--json")
    assert cut.code in (0, 1)
    done = program("replay", "r1", "--to", str(config), "--json")
    assert done.code == 0
    lines = [json.loads(line) for line in (tmp_path / "r1.out").read_text().splitlines()]
    assert [line["step"] for line in lines if "metrics" in line] == list(range(20))


def test_a_killed_replay_goes_on_with_the_command_that_sync_names(program: Program, tmp_path: Path) -> None:
    """Killed halfway, a replay leaves `sync` with the exact command; that sends what is left, and nothing twice."""
    paths = RunPaths(tmp_path / "tracker_bridge_runs" / "r1")
    paths.root.mkdir(parents=True)
    with JournalWriter.create(paths.journal, "r1") as journal:
        for step in range(60_000):
            journal.append(Metrics(step, step, {"loss": step / 2}))
        journal.append(RunFinished(60_000, "finished"))
    write_json(paths.manifest, Manifest(run_id="r1", status="finished", created_ns=0, finished_ns=60_000))
    config = jsonl_config(tmp_path)
    command = [sys.executable, "-m", "tracker_bridge", "replay", "r1", "--to", config.name]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    out = tmp_path / "r1.out"
    while not (out.exists() and out.stat().st_size > 1000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    children = psutil.Process(process.pid).children(recursive=True)
    for victim in (*children, process):
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    process.wait(30)
    psutil.wait_procs(children, timeout=30)
    synced = program("sync", "r1")
    assert synced.code == 1
    (said,) = [line.partition("goes on with it: ")[2] for line in synced.out.splitlines() if "goes on with it" in line]
    assert shlex.split(said) == ["tracker-bridge", "replay", str(paths.root), "--to", str(config)]
    resumed = program(*shlex.split(said)[1:], "--json")
    assert (resumed.code, resumed.json["runs"][0]["complete"]) == (0, True)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted({line["step"] for line in lines if "metrics" in line}) == list(range(60_000))
    assert len([line for line in lines if "metrics" in line]) == 60_000
    assert program("sync", "r1").code == 0


# --- prune


def test_prune_removes_only_what_is_delivered_and_old(program: Program, tmp_path: Path) -> None:
    """Delivered and old goes; undelivered, never sent, young, live or busy stays, each with its reason."""
    folder = tmp_path / "tracker_bridge_runs"
    config = jsonl_config(tmp_path)
    for name in ("delivered", "busy"):
        make_run(folder / name)
        assert program("replay", name, "--to", str(config)).code == 0
    make_run(folder / "unsent")
    make_run(folder / "young", ended_ns=time.time_ns())
    live = make_run(folder / "live")
    manifest = load_manifest(live)
    write_json(live.manifest, type(manifest)(run_id="live", status="running", created_ns=1, owner=this_process()))
    lock = FileLock(RunPaths(folder / "busy").delivery_lock)
    lock.acquire(timeout=0)
    try:
        planned = program("prune", "--dry-run", "--json").json["runs"]
        kept = {run["run_id"]: run["kept"] for run in planned}
        assert kept.pop("delivered") is None
        assert kept["busy"] == "is being delivered"
        assert kept["live"] == "its training process runs"
        assert "never sent" in kept["unsent"]
        assert kept["young"].startswith("ended ")
        assert sorted(p.name for p in folder.iterdir()) == ["busy", "delivered", "live", "unsent", "young"]
        done = program("prune")
        assert (done.code, "1 run (" in done.out) == (0, True)
        assert sorted(p.name for p in folder.iterdir()) == ["busy", "live", "unsent", "young"]
        forced = program("prune", "--force", "--json").json["runs"]
        assert {run["run_id"] for run in forced if run["kept"] is None} == {"unsent"}
        named = program("prune", "live", "--force", "--older-than", "0s")
        assert named.code == 1
    finally:
        lock.release()
    assert sorted(p.name for p in folder.iterdir()) == ["busy", "live", "young"]


def test_prune_of_a_link_removes_the_link(program: Program, tmp_path: Path) -> None:
    """What lies elsewhere stays; nothing hidden is left behind."""
    paths = make_run(tmp_path / "elsewhere" / "r1")
    queue = tmp_path / "tracker_bridge_runs"
    queue.mkdir()
    (queue / "r1").symlink_to(paths.root)
    done = program("prune", "--older-than", "0s", "--force", "--json")
    assert done.json["runs"][0]["kept"] is None
    assert list(queue.iterdir()) == []
    assert load_manifest(paths).run_id == "r1"


@pytest.mark.parametrize("age", ["soon", "-3d", "5", "d"])
def test_an_age_that_is_none_is_wrong_usage(program: Program, age: str) -> None:
    """The form of --older-than is explained."""
    done = program("prune", f"--older-than={age}")
    assert done.code == 2
    assert "12h or 30d" in done.err
