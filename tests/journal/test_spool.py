"""Segments in shared memory, for file systems that map no files: nothing is lost, whoever is killed, whatever fails."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import scripts
from tests.journal.journals import RUN, MapsNoSegments, drain, everything, gaps, numbers, point, steps
from tests.waiting import until
from tracker_bridge.journal import Entry, Gap, JournalReader, JournalWriter, _preparer, _segment, _spool, salvage
from tracker_bridge.journal._files import write_at

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="hides the mapping of one file by its name in /proc"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

NEVER = 1e6


@pytest.fixture(autouse=True)
def _no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment can be mapped."""
    monkeypatch.setattr(_segment, "mmap", MapsNoSegments(_segment.mmap))


@pytest.fixture
def copied_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves shared memory by itself."""
    monkeypatch.setattr(_preparer, "COPY_SECONDS", NEVER)


def spools(folder: Path) -> list[Path]:
    """The files in shared memory that notes of a journal name."""
    return [Path(json.loads(note.read_text())["path"]) for note in sorted(folder.glob("*.spool"))]


@contextlib.contextmanager
def killed_writer(folder: Path, count: int, *, copied: int = 0) -> Iterator[list[Path]]:
    """A journal whose writer was killed after `count` appends, of which the first `copied` are in its file.

    Yields its spools, which are removed in the end.
    """
    child = os.fork()
    if child == 0:
        try:
            writer = JournalWriter.create(folder, RUN)
            for step in range(count):
                if step == copied:
                    writer.sync()
                writer.append(point(step))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = spools(folder)
    try:
        yield left
    finally:
        for path in left:
            path.unlink(missing_ok=True)


def _append_until_killed(folder: Path, out: int, size: int) -> None:
    writer = JournalWriter.recover(folder, RUN, max_disk=64 << 20)
    while True:
        sequence = writer.sequence
        assert writer.append(point(sequence, size)) == sequence
        os.write(out, struct.pack("<Q", sequence))


@pytest.mark.parametrize("size", [0, 700, 20_000])
def test_nothing_whose_append_returned_is_lost_to_sigkill(tmp_path: Path, size: int) -> None:
    """Thirty kills at random points: acknowledged records are there, once, in order (naive: the last 100 ms lack)."""
    chance = random.Random(size)
    acknowledged = -1
    items: list[Entry | Gap] = []
    follower = JournalReader(tmp_path / "j")
    for turn in range(30):
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(out)
                _append_until_killed(tmp_path / "j", into, size)
            finally:
                os._exit(1)
        os.close(into)
        count = chance.randrange(1, 3000 if size < 1000 else 60)
        data = b""
        while len(data) < 8 * count:
            assert select.select([out], [], [], 60)[0]
            more = os.read(out, 8 * count - len(data))
            assert more, "the child ended by itself"
            data += more
        os.kill(child, signal.SIGKILL)
        while more := os.read(out, 1 << 16):
            data += more
        os.close(out)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        acknowledged = struct.unpack_from("<Q", data, len(data) - 8)[0]
        if turn % 2:  # else the next writer does it
            salvage(tmp_path / "j")
            items += drain(follower)
            assert len(items) > acknowledged
            assert spools(tmp_path / "j") == []
    follower.close()
    assert items == everything(tmp_path / "j")
    assert numbers(items) == list(range(len(items)))
    assert gaps(items) == []
    assert all(item.record == point(item.sequence, size) for item in items if isinstance(item, Entry))


@pytest.mark.usefixtures("copied_never")
def test_what_was_nowhere_but_in_shared_memory_is_brought_home(tmp_path: Path) -> None:
    """Its writer was killed before anything was copied; again and again is as well as once."""
    with killed_writer(tmp_path / "j", 500) as left:
        assert steps(everything(tmp_path / "j")) == []
        for _ in range(3):
            salvage(tmp_path / "j")
            assert steps(everything(tmp_path / "j")) == list(range(500))
        assert left
        assert not any(path.exists() for path in left)
        assert list((tmp_path / "j").glob("*.spool")) == []


def test_readers_follow_within_a_moment_and_see_no_gap_where_segments_change(tmp_path: Path) -> None:
    """However threads take turns, a segment is complete when the next one shows (naive: its end is taken for lost)."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with JournalWriter.create(tmp_path / "j", RUN) as writer, JournalReader(tmp_path / "j") as reader:
            items: list[Entry | Gap] = []
            for step in range(6000):
                assert writer.append(point(step, 5000)) == step
                if step % 50 == 0:
                    items += drain(reader)
            assert writer._number > 5
            until(lambda: bool(items.extend(drain(reader)) or len(items) == 6000), what="all of it is read")
            assert steps(items) == list(range(6000))
            assert gaps(items) == []
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.usefixtures("copied_never")
def test_sync_and_close_bring_everything_to_the_file(tmp_path: Path) -> None:
    """Both are promises about the disk itself; a closed journal leaves nothing in shared memory."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        for step in range(100):
            writer.append(point(step))
        (spool, *_) = spools(tmp_path / "j")
        assert spool.stat().st_mode & 0o777 == 0o600
        writer.sync()
        assert writer.dropped == {}
        assert steps(everything(tmp_path / "j")) == list(range(100))
        for step in range(100, 200):
            writer.append(point(step))
        left = spools(tmp_path / "j")
    assert steps(everything(tmp_path / "j")) == list(range(200))
    assert not any(path.exists() for path in left)
    assert sorted(path.name for path in (tmp_path / "j").iterdir()) == [".writer", "00000001.seg"]


def test_a_hung_disk_stalls_an_append_once_and_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends go on in shared memory until that is full; then they are dropped at once, and counted."""
    gate = threading.Event()
    with JournalWriter.create(tmp_path / "j", RUN) as writer:

        def hang(fd: int, data: Any, offset: int) -> None:
            gate.wait(60)
            write_at(fd, data, offset)

        monkeypatch.setattr(_spool, "write_at", hang)
        times = []
        end = time.monotonic() + 3
        while time.monotonic() < end:
            start = time.monotonic()
            writer.append(point(len(times), 30_000))
            times.append(time.monotonic() - start)
            time.sleep(0.005)
        assert sum(taken > 0.2 for taken in times) <= 2
        assert max(times) < 5
        assert set(writer.dropped) == {"slow_disk"}
        gate.set()
        dropped = sum(writer.dropped.values())
        until(lambda: writer.append(point(-1)) is not None, what="it goes on")
    found = steps(everything(tmp_path / "j"))
    assert found[-1] == -1
    assert len(found) == len(times) - dropped + 1


def test_a_disk_that_fails_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies fail with EIO over two changes of segments: the data stays in shared memory until one works."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:

        def fail(fd: int, data: Any, offset: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(_spool, "write_at", fail)
            step = 0
            while writer._number < 3:
                assert writer.append(point(step, 5000)) == step
                step += 1
            writer.sync()
            assert writer.dropped == {"sync_failed": 1}
            assert steps(everything(tmp_path / "j")) == []
        until(lambda: len(everything(tmp_path / "j")) == step, what="the next copy")
    assert steps(everything(tmp_path / "j")) == list(range(step))
    assert gaps(everything(tmp_path / "j")) == []


def test_a_disk_that_fails_to_the_end_leaves_it_to_whoever_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed while no copy works: the notes stay, and `salvage` brings all of it home when the disk is well."""

    def fail(fd: int, data: Any, offset: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(_spool, "write_at", fail)
        with JournalWriter.create(tmp_path / "j", RUN) as writer:
            for step in range(100):
                assert writer.append(point(step)) == step
    assert steps(everything(tmp_path / "j")) == []
    salvage(tmp_path / "j")
    assert steps(everything(tmp_path / "j")) == list(range(100))
    assert spools(tmp_path / "j") == []


def test_where_there_is_no_shared_memory_to_spare_each_record_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's few MiB are for its data loaders: as much as eight spools must be free."""
    monkeypatch.setattr(_spool, "_SPARE", 1 << 40)
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        writer.append(point(0))
        assert spools(tmp_path / "j") == []
        assert steps(everything(tmp_path / "j")) == [0]


@pytest.mark.usefixtures("copied_never")
def test_a_forked_child_leaves_what_is_in_shared_memory_alone(tmp_path: Path) -> None:
    """It neither copies nor removes; what the parent appends afterwards is there."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        writer.append(point(0))
        child = os.fork()
        if child == 0:
            refused = writer.append(point(-1)) is None
            writer.sync()
            writer.close()
            os._exit(0 if refused else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert all(path.exists() for path in spools(tmp_path / "j"))
        assert writer.append(point(1)) == 1
        writer.sync()
        assert steps(everything(tmp_path / "j")) == [0, 1]


@pytest.mark.usefixtures("copied_never")
@pytest.mark.parametrize("how", ["another file", "readable by others", "a link", "gone", "another boot"])
def test_a_note_of_a_file_that_is_not_the_spool_brings_nothing_home(tmp_path: Path, how: str) -> None:
    """A run directory may come from anywhere (naive: `status` reads and deletes whatever file its note names)."""
    precious = tmp_path / "precious"
    with killed_writer(tmp_path / "j", 10) as (spool, *_):
        precious.write_bytes(spool.read_bytes())
        precious.chmod(0o600)
        note = tmp_path / "j" / "00000001.spool"
        content = json.loads(note.read_text())
        if how == "another file":
            content["path"] = str(precious)
        elif how == "readable by others":
            spool.chmod(0o644)
        elif how == "a link":
            spool.unlink()
            spool.symlink_to(precious)
        elif how == "gone":
            spool.unlink()
        else:
            content["boot"] = "another"
        note.write_text(json.dumps(content))
        salvage(tmp_path / "j")
        assert steps(everything(tmp_path / "j")) == []
    assert precious.exists()


@pytest.mark.usefixtures("copied_never")
@pytest.mark.parametrize("how", ["another machine", "another boot", "gone"])
def test_a_journal_that_goes_on_without_its_spool_counts_what_may_lack(tmp_path: Path, how: str) -> None:
    """A run that is resumed on another node, or in a new container, says so; what was copied before is there."""
    with killed_writer(tmp_path / "j", 10, copied=5) as left:
        (note,) = [each for each in (tmp_path / "j").glob("*.spool") if each.name == "00000001.spool"]
        change = {"another machine": {"host": "elsewhere"}, "another boot": {"boot": "another"}, "gone": {}}[how]
        note.write_text(json.dumps({**json.loads(note.read_text()), **change}))
        if how == "gone":
            left[0].unlink()
        if how == "another machine":
            salvage(tmp_path / "j")  # here is not the place for that
            assert note.exists()
        with JournalWriter.recover(tmp_path / "j", RUN) as writer:
            assert writer.dropped == {"spool_lost": 1}
            assert writer.append(point(99)) == 5
        assert steps(everything(tmp_path / "j")) == [0, 1, 2, 3, 4, 99]
        assert list((tmp_path / "j").glob("*.spool")) == []


@pytest.mark.usefixtures("copied_never")
def test_a_run_directory_may_be_moved_or_copied_before_it_is_salvaged(tmp_path: Path) -> None:
    """A copy gets what there is and takes nothing from the original (naive: the original then lacks its end)."""
    with killed_writer(tmp_path / "j", 10):
        shutil.copytree(tmp_path / "j", tmp_path / "copy")
        (tmp_path / "j").rename(tmp_path / "moved")
        for folder in (tmp_path / "copy", tmp_path / "moved"):
            salvage(folder)
            assert steps(everything(folder)) == list(range(10))
            assert spools(folder) == []


SCRIPT = """
import os, signal
from tests.journal.journals import MapsNoSegments
from tracker_bridge.journal import _preparer, _segment
_segment.mmap = MapsNoSegments(_segment.mmap)
_preparer.COPY_SECONDS = 1e6
import tracker_bridge as bridge
run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r")
for step in range(200):
    run.log_metrics({"x": float(step)}, step=step)
if WITH_DELIVERY:
    os.kill(run._channel._process.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_delivery_brings_home_what_a_killed_training_process_left(tmp_path: Path) -> None:
    """Everything that was logged reaches the tracker, though none of it had reached the disk."""
    scripts.run(tmp_path, SCRIPT.replace("WITH_DELIVERY", "False"))
    until(lambda: not scripts.processes_of(tmp_path), what="delivery has ended")
    assert scripts.metrics(tmp_path / "out.jsonl", "x") == [(step, float(step)) for step in range(200)]
    assert scripts.statuses(tmp_path / "out.jsonl") == ["crashed"]


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from tracker_bridge.cli import main; sys.exit(main(sys.argv[1:]))"
    return scripts.run(folder, code, *words)


@pytest.mark.parametrize("first", ["status", "sync", "read"])
def test_commands_bring_home_what_was_left_when_all_were_killed(tmp_path: Path, first: str) -> None:
    """Training and delivery are gone: `status` counts every record, `sync` delivers it, `read` sees it."""
    scripts.run(tmp_path, SCRIPT.replace("WITH_DELIVERY", "True"))
    until(lambda: not scripts.processes_of(tmp_path), what="delivery has ended")
    if first == "status":
        (run,) = json.loads(command(tmp_path, "status", "--json").stdout)["runs"]
        assert run["backends"][0]["pending"] >= 200
    if first == "read":
        code = "import tracker_bridge as b; print(len(b.read('tracker_bridge_runs/r').metrics()['x'][1]))"
        done = scripts.run(tmp_path, code)
        assert done.stdout == "200\n", done.stderr
    synced = command(tmp_path, "sync")
    assert synced.returncode == 0, synced.stdout + synced.stderr
    assert scripts.metrics(tmp_path / "out.jsonl", "x") == [(step, float(step)) for step in range(200)]
