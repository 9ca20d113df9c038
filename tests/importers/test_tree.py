"""Trees of foreign runs into run directories: whole or not at all, resumable, bounded, and reported."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from tests.importers.helpers import points_of, same
from tests.importers.test_tensorboard import NAME, VERSION, framed, scalar, write_events
from tests.waiting import until
from tracker_bridge.importers import Outcome, _staging, _tree, discover, import_tree
from tracker_bridge.reader import read
from tracker_bridge.rundir import FileLock, RunPaths, _files, load_manifest

KIND = "tensorboard"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes join from the start, as they do after a second."""
    monkeypatch.setattr(_tree, "NEXT_WORKER", 0.0)


def make_tree(root: Path, runs: int, steps: int = 5) -> Path:
    for index in range(runs):
        events = [VERSION, *(scalar("loss", step, step + index, 1.7e9 + step) for step in range(steps))]
        write_events(root / f"run{index:03d}", events, NAME.replace("1700000000", str(1700000000 + index)))
    return root


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_small_run_costs_few_files_and_no_thread(tmp_path: Path) -> None:
    """A run without files and backends is its manifest and its journal, with nothing left preallocated."""
    tree, queue = make_tree(tmp_path / "tree", 2, steps=20), tmp_path / "queue"
    started = []
    threading.setprofile(lambda *_: started.append(threading.current_thread().name))
    try:
        report = import_tree(KIND, tree, queue, workers=1)
    finally:
        threading.setprofile(None)
    assert len(report.imported) == 2
    assert started == []
    for outcome in report.imported:
        files = {str(path.relative_to(outcome.dir)): path for path in Path(outcome.dir or "").rglob("*")}
        assert set(files) == {"run.json", "journal", "journal/.writer", "journal/00000001.seg"}
        assert files["journal/00000001.seg"].stat().st_size < 4096
    assert list(queue.glob(".*")) == []


def test_a_run_is_on_the_disk_before_it_counts_as_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut right after the rename finds every file whole; else an empty journal were "imported already"."""
    (tmp_path / "picture.png").write_bytes(b"pixels")
    lines = ['{"step": 1, "loss": 2.0}', '{"time_ns": 1, "step": null, "artifact": {"a": "picture.png"}}']
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    synced: set[int] = set()
    fsync, rename = os.fsync, os.rename
    seen: list[set[str]] = []

    def note(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    def check(source: Path, target: Path) -> None:
        files = [path for path in Path(source).rglob("*") if path.is_file() and path.stat().st_size]
        seen.append({path.name for path in files if path.stat().st_ino in synced})
        assert {path.stat().st_ino for path in files} <= synced
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", check)
    assert import_tree("jsonl", tmp_path / "run.jsonl", tmp_path / "queue", workers=1).imported
    assert seen == [{"run.json", "00000001.seg", "a.png"}]


def test_two_imports_of_one_tree_at_once_make_each_run_once(tmp_path: Path) -> None:
    """Whoever is later with a run says that it is imported; none fails, and nothing is left behind."""
    tree, queue = make_tree(tmp_path / "tree", 30), tmp_path / "queue"
    code = (
        "import sys; from tracker_bridge.importers import import_tree; r = import_tree(*sys.argv[1:], workers=1);"
        " print(len(r.imported), len(r.skipped), len(r.failed))"
    )
    command = [sys.executable, "-c", code, KIND, str(tree), str(queue)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    counts = [list(map(int, process.communicate(timeout=60)[0].split())) for process in started]
    assert [sum(column) for column in zip(*counts, strict=True)] == [30, 60, 0]
    assert sorted(p.name for p in queue.iterdir()) == sorted(run.run_id for run in discover(KIND, tree))


def test_what_a_killed_import_left_is_removed_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    """The place of a dead process goes with the next import; that of one which still runs stays."""
    tree, queue = make_tree(tmp_path / "tree", 2), tmp_path / "queue"
    code = (
        "import sys; from pathlib import Path; from tracker_bridge.importers._staging import Staging;"
        " s = Staging(Path(sys.argv[1])); s.open(); print(s.place('half')); sys.stdout.flush(); sys.stdin.read()"
    )
    places = []
    started = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(queue)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        places.append(Path(process.stdout.readline().strip()))
    started[0].kill()
    started[0].communicate()
    try:
        assert len(import_tree(KIND, tree, queue, workers=1).imported) == 2
        assert [place.exists() for place in places] == [False, True]
        assert len(list((queue / ".importing").iterdir())) == 2, "the place of the living one and its lock"
    finally:
        started[1].kill()
        started[1].communicate()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tensorboard", "wandb", "neptune-db"])
def test_what_is_no_file_costs_one_run_and_not_the_tree(tmp_path: Path, kind: str) -> None:
    """A dangling link and a pipe are failed runs with their reason; the import neither stops at them nor waits."""
    names = {"csv": "a.csv", "jsonl": "a.jsonl", "tensorboard": NAME, "wandb": "run-a.wandb"}
    name = names.get(kind, "run_operations.sqlite3")
    other = "run-b.wandb" if kind == "wandb" else name  # files of one run id are one run
    tree = tmp_path / "tree"
    for folder in ("link", "pipe", "sound"):
        (tree / folder).mkdir(parents=True)
    (tree / "link" / name).symlink_to("nowhere")
    os.mkfifo(tree / "pipe" / other)
    if kind == "csv":
        (tree / "sound" / name).write_text("step,loss\n1,2.0\n")
    elif kind == "jsonl":
        (tree / "sound" / name).write_text('{"step": 1, "loss": 2.0}\n')
    elif kind == "tensorboard":
        write_events(tree / "sound", [VERSION, scalar("loss", 1, 2.0)], name)
    report = import_tree(kind, tree, tmp_path / "queue", workers=1)
    why = {Path(outcome.source).parent.name: outcome.why or "" for outcome in report.failed}
    assert "not a regular file" in why["pipe"]
    assert "No such file" in why["link"]
    assert len(report.imported) == (1 if kind in ("csv", "jsonl", "tensorboard") else 0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_name_that_is_no_text_is_spelled_out(tmp_path: Path, workers: int) -> None:
    """A file name of another encoding is imported under an escaped name, in this process and in others."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(4):
        path = os.fsencode(tree) + b"/caf\xe9-%d.csv" % number
        Path(os.fsdecode(path)).write_text(f"step,loss\n1,{number}\n")
    held = threading.Event()

    def hold(_: Outcome) -> None:
        if workers > 1 and not held.is_set():
            held.set()
            until(importers, what="another process joins")

    report = import_tree("csv", tree, tmp_path / "queue", workers=workers, on_progress=hold)
    assert report.failed == ()
    assert sorted(outcome.name or "" for outcome in report.imported) == [f"caf\\udce9-{n}" for n in range(4)]
    for outcome in report.imported:
        assert load_manifest(RunPaths(Path(outcome.dir or ""))).name == outcome.name
    again = import_tree("csv", tree, tmp_path / "queue", workers=1)
    assert len(again.skipped) == 4


def test_ctrl_c_ends_all_importing_processes_quietly(tmp_path: Path) -> None:
    """What a terminal sends to the whole group: no traceback of any process, none left, nothing half imported."""
    tree, queue = tmp_path / "tree", tmp_path / "queue"
    tree.mkdir()
    rows = "".join(f"{step},{step / 7}\n" for step in range(30_000))
    for number in range(40):
        (tree / f"{number}.csv").write_text("step,loss\n" + rows)
    code = (
        "import sys; from tracker_bridge.importers import _tree; _tree.NEXT_WORKER = 0.0;"
        " from tracker_bridge.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "import", "csv", str(tree), "--dir", str(queue), "--workers", "3"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        parent = psutil.Process(process.pid)
        until(lambda: len(parent.children()) == 2 and len(list(queue.glob("csv-*"))) >= 2, 60, "all of them import")
        children = parent.children()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in err, err
    assert process.returncode == 130
    psutil.wait_procs(children, timeout=10)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not (queue / ".importing").exists()
    for path in queue.glob("csv-*"):
        assert len(read(path).metrics()["loss"][0]) == 30_000


@pytest.mark.parametrize("at", ["acquire", "mkdir", "is_current"])
def test_ctrl_c_while_a_place_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Right after any step of it (naive: the lock's file stays, and the hidden folder with it)."""
    owner = Path if at == "mkdir" else FileLock
    real = getattr(owner, at)

    def interrupted(this: Path | FileLock, *arguments: Any, **options: Any) -> None:
        real(this, *arguments, **options)
        if at != "mkdir" or str(os.getpid()) in str(this):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, at, interrupted)
        with pytest.raises(KeyboardInterrupt), _staging.Staging(tmp_path / "queue") as staging:
            staging.open()
    assert not (tmp_path / "queue" / ".importing").exists()


def test_a_place_that_was_swept_before_it_was_locked_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two others sweep while a place is made: one removes its lock file, one makes it anew and then takes the folder.

    Asked only whether there is such a file, the place was used, and every run in it failed.
    """
    queue = tmp_path / "queue"
    lock_it, mkdir = _files._try_lock, Path.mkdir
    swept: list[Path] = []
    second: list[FileLock] = []

    def try_lock(fd: int) -> bool:
        if not swept:
            (path,) = (queue / ".importing").glob("*.lock")
            swept.append(path)
            with FileLock(path):
                path.unlink()
        return lock_it(fd)

    def make(self: Path, *arguments: Any, **more: Any) -> None:
        mkdir(self, *arguments, **more)
        if swept and self == swept[0].with_suffix("") and not second:
            second.append(FileLock(swept[0]))
            second[0].acquire(0)

    monkeypatch.setattr(_files, "_try_lock", try_lock)
    monkeypatch.setattr(Path, "mkdir", make)
    with _staging.Staging(queue) as staging:
        staging.open()
        shutil.rmtree(swept[0].with_suffix(""), ignore_errors=True)
        swept[0].unlink()
        second[0].release()
        assert staging.place("run").is_dir()
    assert not (queue / ".importing").exists()


def test_what_was_left_goes_also_when_nothing_is_imported(tmp_path: Path) -> None:
    """An import that skips every run clears up after one that was killed."""
    tree, queue = make_tree(tmp_path / "tree", 1), tmp_path / "queue"
    import_tree(KIND, tree, queue, workers=1)
    (queue / ".importing" / "1-dead" / "run").mkdir(parents=True)
    (queue / ".importing" / "1-dead.lock").touch()
    assert len(import_tree(KIND, tree, queue, workers=1).skipped) == 1
    assert not (queue / ".importing").exists()


def test_a_long_run_goes_over_many_segments(tmp_path: Path) -> None:
    """An import that fills segment after segment keeps every point in its order."""
    source = tmp_path / "long.csv"
    source.write_text("step,loss\n" + "".join(f"{step},{step / 7}\n" for step in range(60_000)))
    (outcome,) = import_tree("csv", source, tmp_path / "queue", workers=1).imported
    assert len(list(Path(outcome.dir or "", "journal").glob("*.seg"))) > 2
    steps, values = read(outcome.dir or "").metrics()["loss"]
    assert steps.tolist() == list(range(60_000))
    assert values.tolist() == [step / 7 for step in range(60_000)]


@pytest.mark.usefixtures("at_once")
def test_a_tree_becomes_run_directories_and_twice_changes_nothing(tmp_path: Path) -> None:
    """Each run can be read back equal to what the importer read; a second import skips all and touches no byte."""
    tree, queue = make_tree(tmp_path / "tree", 12), tmp_path / "queue"
    seen: list[Outcome] = []
    report = import_tree(KIND, tree, queue, workers=3, on_progress=seen.append)
    assert (len(report.imported), len(report.skipped), len(report.failed)) == (12, 0, 0)
    assert [outcome.name for outcome in report.imported] == [f"run{i:03d}" for i in range(12)]
    assert sorted(outcome.run_id for outcome in seen) == sorted(outcome.run_id for outcome in report.imported)
    for run in discover(KIND, tree):
        reader = read(queue / run.run_id)
        series = {name: list(zip(s.tolist(), v.tolist(), strict=True)) for name, (s, v) in reader.metrics().items()}
        assert same(series, points_of(list(run.records())))
        manifest = load_manifest(RunPaths(queue / run.run_id))
        assert (manifest.status, manifest.name, manifest.backends) == ("finished", run.name, {})
        assert manifest.created_ns == 1_700_000_000 * 10**9
        assert manifest.finished_ns == 1_700_000_004 * 10**9
    before = content(queue)
    again = import_tree(KIND, tree, queue, workers=2)
    assert (len(again.imported), len(again.skipped), len(again.failed)) == (0, 12, 0)
    assert {outcome.why for outcome in again.skipped} == {"is imported already"}
    assert content(queue) == before
    assert sorted(p.name for p in queue.iterdir()) == sorted(run.run_id for run in discover(KIND, tree))


@pytest.mark.usefixtures("at_once")
def test_one_worker_and_many_give_the_same(tmp_path: Path) -> None:
    """The journals do not depend on how many processes wrote them."""
    tree = make_tree(tmp_path / "tree", 5)
    for name, workers in (("one", 1), ("many", 4)):
        import_tree(KIND, tree, tmp_path / name, workers=workers)

    def journals(root: Path) -> dict[str, bytes]:
        return {name: data for name, data in content(root).items() if name.endswith("run.json")}

    assert journals(tmp_path / "one") == journals(tmp_path / "many")
    for run in discover(KIND, tree):
        one, many = read(tmp_path / "one" / run.run_id), read(tmp_path / "many" / run.run_id)
        assert repr(one.metrics()) == repr(many.metrics())


@pytest.mark.usefixtures("at_once")
def test_a_bad_run_costs_itself_and_is_explained(tmp_path: Path) -> None:
    """A damaged file fails its run with file and place; the others come through, and salvaging takes what is sound."""
    tree, queue = make_tree(tmp_path / "tree", 4), tmp_path / "queue"
    path = next((tree / "run002").iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))
    report = import_tree(KIND, tree, queue, workers=2)
    assert (len(report.imported), len(report.failed)) == (3, 1)
    (failed,) = report.failed
    assert failed.why is not None
    assert str(path) in failed.why
    assert "offset" in failed.why
    assert not (queue / failed.run_id).exists()
    salvaged = import_tree(KIND, tree, queue, workers=2, salvage=True)
    assert (len(salvaged.imported), len(salvaged.skipped)) == (1, 3)
    assert salvaged.imported[0].damage
    assert str(path) in salvaged.imported[0].damage[0]
    assert load_manifest(RunPaths(queue / failed.run_id)).provenance["import_damage"]
    assert 1 <= len(read(queue / failed.run_id).metrics()["loss"][0]) < 5


def test_a_killed_import_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """SIGKILL in the middle leaves whole runs and no half ones; the next import adds the rest."""
    tree, queue = make_tree(tmp_path / "tree", 100, steps=40), tmp_path / "queue"
    code = "from tracker_bridge.importers import import_tree; import sys; import_tree(*sys.argv[1:], workers=1)"
    process = subprocess.Popen([sys.executable, "-c", code, KIND, str(tree), str(queue)])
    deadline = time.monotonic() + 60
    while len(list(queue.glob("tensorboard-*"))) < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    done = list(queue.glob("tensorboard-*"))
    assert 5 <= len(done) < 100
    for path in done:
        assert len(read(path).metrics()["loss"][0]) == 40
    report = import_tree(KIND, tree, queue, workers=1)
    assert len(report.skipped) == len(done)
    assert len(report.imported) == 100 - len(done)
    assert not [path for path in queue.iterdir() if path.name.startswith(".")]


def test_a_few_small_runs_start_no_process(tmp_path: Path) -> None:
    """The import begins where it is called, however many processes it may take."""
    tree, queue = make_tree(tmp_path / "tree", 3), tmp_path / "queue"
    seen: list[int] = []
    report = import_tree(KIND, tree, queue, workers=4, on_progress=lambda _: seen.append(len(importers())))
    assert len(report.imported) == 3
    assert seen == [0, 0, 0]


def importers() -> list[psutil.Process]:
    """Our children that import."""
    return [child for child in psutil.Process().children() if any("_worker.py" in part for part in child.cmdline())]


@pytest.mark.usefixtures("at_once")
def test_a_worker_that_dies_costs_its_run_only(tmp_path: Path) -> None:
    """When importing processes are killed, the runs in their hands fail with the signal; no other run is lost."""
    tree, queue = make_tree(tmp_path / "tree", 20), tmp_path / "queue"
    killed: list[int] = []

    def kill_once(_: Outcome) -> None:
        if not killed:
            for child in until(importers, what="another process joins"):
                killed.append(child.pid)
                child.kill()

    report = import_tree(KIND, tree, queue, workers=2, on_progress=kill_once)
    assert killed
    assert len(report.imported) + len(report.failed) == 20
    assert 1 <= len(report.failed) <= len(killed)
    assert all(outcome.why == "the importing process ended with signal 9" for outcome in report.failed)
    again = import_tree(KIND, tree, queue, workers=2)
    assert len(again.imported) == len(report.failed)
    assert not importers()


def test_a_source_that_has_grown_is_not_taken_for_the_same(tmp_path: Path) -> None:
    """A run imported before whose source has changed is skipped with the way to import it anew."""
    tree, queue = make_tree(tmp_path / "tree", 1), tmp_path / "queue"
    (first,) = import_tree(KIND, tree, queue).imported
    path = next((tree / "run000").iterdir())
    with path.open("ab") as file:
        file.write(framed(scalar("loss", 5, 9.0).SerializeToString()))
    (skipped,) = import_tree(KIND, tree, queue).skipped
    assert skipped.why is not None
    assert "has changed since" in skipped.why
    assert str(first.dir) in skipped.why


def test_files_are_copied_into_the_run_under_names_that_stay_inside(tmp_path: Path) -> None:
    """A moved run holds its files itself; names that climb, repeat or nest in each other cannot leave or collide."""
    lines = ""
    for index, name in enumerate(["../../evil", "/etc/evil", "a", "a/b", "A", "a", "x\\..\\y", "", "c:d"]):
        (tmp_path / f"{index}.bin").write_text(str(index))
        lines += f'{{"time_ns": 1, "step": null, "artifact": {{{json_text(name)}: "{index}.bin"}}}}\n'
    (tmp_path / "run.jsonl").write_text(lines)
    (imported,) = import_tree("jsonl", tmp_path / "run.jsonl", tmp_path / "queue").imported
    assert imported.dir is not None
    reader = read(imported.dir)
    kept = [reader.dir / artifact.path for artifact in reader.artifacts()]
    assert [path.read_text() for path in kept] == [str(index) for index in range(9)]
    assert all(path.resolve().is_relative_to(reader.dir / "files") for path in kept)
    assert not (tmp_path / "queue" / "evil").exists()
    assert all(Path(artifact.path).is_relative_to("files") for artifact in reader.artifacts())


def json_text(text: str) -> str:
    import json

    return json.dumps(text)


def test_images_of_an_event_file_end_up_in_the_run(tmp_path: Path) -> None:
    """What has to be unpacked first is written straight into the run directory."""
    image = Summary.Value(tag="picture", image=Summary.Image(height=1, width=1, encoded_image_string=b"\x89PNG pixels"))
    write_events(tmp_path / "tree", [VERSION, Event(wall_time=1.7e9, step=3, summary=Summary(value=[image]))])
    (imported,) = import_tree(KIND, tmp_path / "tree", tmp_path / "queue").imported
    assert imported.dir is not None
    (artifact,) = read(imported.dir).artifacts()
    assert (Path(imported.dir) / artifact.path).read_bytes() == b"\x89PNG pixels"


def test_a_queue_that_cannot_be_written_is_said_for_each_run(tmp_path: Path) -> None:
    """A fault of the disk fails the runs with its reason instead of ending the import."""
    tree = make_tree(tmp_path / "tree", 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        import_tree(KIND, tree, tmp_path / "file" / "queue", workers=1)
    full = tmp_path / "queue"
    full.mkdir()
    for run in discover(KIND, tree):
        (full / run.run_id).mkdir()
        (full / run.run_id / "something").write_text("in the way")
    report = import_tree(KIND, tree, full, workers=1)
    assert [outcome.why is not None and "is in the way" in outcome.why for outcome in report.skipped] == [True, True]


@pytest.mark.usefixtures("at_once")
def test_a_working_directory_with_modules_in_it_is_never_imported_from(tmp_path: Path) -> None:
    """Importing from inside a hostile folder executes nothing that lies there."""
    tree = make_tree(tmp_path / "tree", 3)
    for name in ("numpy", "json", "msgspec", "tracker_bridge"):
        (tree / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nraise SystemExit(9)\n")
    before = Path.cwd()
    os.chdir(tree)
    try:
        report = import_tree(KIND, ".", tmp_path / "queue", workers=2)
    finally:
        os.chdir(before)
    assert len(report.imported) == 3, report.failed
    assert not (tmp_path / "executed").exists()


def test_an_unknown_kind_names_the_nearest(tmp_path: Path) -> None:
    """A mistyped kind is an error that says which one was meant."""
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        import_tree("tensorbord", tmp_path, tmp_path / "queue")


def test_a_record_too_large_for_the_journal_is_counted(tmp_path: Path) -> None:
    """A text of more than the journal takes is left out with its reason; the rest of the run comes through."""
    tensor = TensorProto(dtype=7, string_val=[b"x" * (65 << 20)])
    huge = Event(wall_time=1.7e9, step=1, summary=Summary(value=[Summary.Value(tag="big", tensor=tensor)]))
    write_events(tmp_path / "tree", [VERSION, scalar("x", 0, 1.0), huge, scalar("x", 1, 2.0)])
    (imported,) = import_tree(KIND, tmp_path / "tree", tmp_path / "queue").imported
    assert imported.left_out == {"records too large for the journal": 1}
    assert imported.dir is not None
    assert read(imported.dir).metrics()["x"][1].tolist() == [1.0, 2.0]
