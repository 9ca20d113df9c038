"""Faults of the disk: counted, told in the journal when it works again, never an exception in the caller."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.journals import RUN, disk_use, everything, gaps, numbers, point, records, steps
from tracker_bridge.journal import JournalWriter, _segment
from tracker_bridge.records import AnyRecord, Dropped

REPOSITORY = Path(__file__).resolve().parents[2]


def _until_appended(writer: JournalWriter, record: AnyRecord) -> None:
    deadline = time.monotonic() + 20
    while writer.append(record) is None:
        assert time.monotonic() < deadline, writer.dropped
        time.sleep(0.01)


def _told(folder: Path) -> dict[str, int]:
    told: dict[str, int] = {}
    for record in records(everything(folder)):
        if isinstance(record, Dropped):
            for reason, count in record.reasons.items():
                told[reason] = told.get(reason, 0) + count
    return told


def test_a_file_size_limit_is_counted_and_kept_alive(tmp_path: Path) -> None:
    """RLIMIT_FSIZE (a quota, seen from here): smaller segments are used, then drops counted, then it recovers."""
    script = f"""
    import json, resource, sys, time
    from pathlib import Path
    from tests.journal.journals import RUN, point
    from tracker_bridge.journal import JournalWriter
    writer = JournalWriter.create(Path({str(tmp_path / "j")!r}), RUN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    refused = 0
    for step in range(60):
        refused += writer.append(point(step, 30_000)) is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    deadline = time.monotonic() + 20
    while writer.append(point(1000, 30_000)) is None:
        refused += 1
        assert time.monotonic() < deadline
        time.sleep(0.01)
    print(json.dumps([refused, writer.dropped]))
    writer.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    refused, dropped = eval(done.stdout)
    items = everything(tmp_path / "j")
    assert refused > 40
    assert dropped == {"disk_full": refused} == _told(tmp_path / "j")
    assert steps(items)[-1] == 1000
    assert steps(items)[:-1] == list(range(len(steps(items)) - 1))
    assert gaps(items) == []


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    folder = Path(tempfile.mkdtemp())
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def test_a_full_disk_is_survived_and_every_byte_of_it_used_first(small_disk: Path) -> None:
    """Appends go on until the disk is full, are then counted, and work again when someone makes room."""
    (small_disk / "ballast").write_bytes(bytes(800 << 10))
    with JournalWriter.create(small_disk / "j", RUN) as writer:
        taken = 0
        while writer.append(point(taken, 2000)) is not None:
            taken += 1
        assert taken * 2000 > 900 << 10, "the largest segment that still fits was not used"
        assert writer.append(point(-5, 2000)) is None
        assert set(writer.dropped) == {"disk_full"}
        (small_disk / "ballast").unlink()
        _until_appended(writer, point(-1, 2000))
        dropped = dict(writer.dropped)
    items = everything(small_disk / "j")
    assert steps(items) == [*range(taken), -1]
    assert _told(small_disk / "j") == dropped
    assert numbers(items) == list(range(len(items)))


def test_a_full_disk_at_the_start_is_an_os_error(small_disk: Path) -> None:
    """Opening reports it; there is no run yet that it could disturb."""
    (small_disk / "ballast").write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="No space") as raised:
        JournalWriter.create(small_disk / "j", RUN)
    assert raised.value.errno == errno.ENOSPC


def test_a_removed_folder_is_survived_and_made_again(tmp_path: Path) -> None:
    """What was appended before is gone with the folder; what comes after the next segment begins is kept."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        writer.append(point(0))
        shutil.rmtree(tmp_path / "j")
        for step in range(1, 40):
            assert writer.append(point(step, 30_000)) is not None
    found = steps(everything(tmp_path / "j"))
    assert found
    assert found == list(range(found[0], 40))


def test_a_run_directory_that_is_gone_is_counted(tmp_path: Path) -> None:
    """Nothing is made at a place whose parent somebody removed; the caller sees a count only."""
    (tmp_path / "run").mkdir()
    with JournalWriter.create(tmp_path / "run" / "j", RUN) as writer:
        shutil.rmtree(tmp_path / "run")
        results = [writer.append(point(step, 30_000)) for step in range(40)]
        assert writer.dropped == {"io_error": results.count(None)}
        assert results.count(None) > 20
        writer.sync()
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_counted(tmp_path: Path) -> None:
    """A folder that turns read-only refuses the next segment, and works again when it is writable."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        (tmp_path / "j").chmod(0o500)
        try:
            results = [writer.append(point(step, 30_000)) for step in range(40)]
            assert writer.dropped == {"io_error": results.count(None)}
        finally:
            (tmp_path / "j").chmod(0o700)
        _until_appended(writer, point(99))


def test_a_read_only_file_system_is_counted(small_disk: Path) -> None:
    """A remount read-only (what a kernel does after an I/O error) is a count, and writing goes on after the repair."""
    (small_disk / "j").mkdir()
    with JournalWriter.recover(small_disk / "j", RUN, max_disk=1 << 20) as writer:
        for step in range(50):
            writer.append(point(step, 5_000))
        # What is open for writing keeps a file system from going read-only, so a read-only view of it is put on top.
        side, place = small_disk / "side", small_disk / "j"
        side.mkdir()
        subprocess.run(["mount", "--bind", str(place), str(side)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(side)], check=True)
            subprocess.run(["mount", "--bind", str(side), str(place)], check=True)
            try:
                results = [writer.append(point(step, 5_000)) for step in range(50, 200)]
                assert results.count(None) > 20
                assert set(writer.dropped) == {"io_error"}
            finally:
                subprocess.run(["umount", "-l", str(place)], check=True)
        finally:
            subprocess.run(["umount", "-l", str(side)], check=True)
        _until_appended(writer, point(999))
        assert _told(small_disk / "j") == writer.dropped
    assert steps(everything(small_disk / "j"))[-1] == 999


@pytest.mark.parametrize("hidden", ["fallocate", "mmap", "both", "mmap fails", "populate"])
def test_the_journal_works_where_the_system_lacks_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """macOS has no `posix_fallocate`, some file systems no shared mappings: same files, same guarantees."""
    if hidden in ("fallocate", "both"):
        monkeypatch.delattr(os, "posix_fallocate")
    if hidden in ("mmap", "both"):
        monkeypatch.setattr(_segment, "mmap", None)
    if hidden == "mmap fails":

        class _Mmap:
            def mmap(self, *arguments: object) -> None:
                raise OSError(errno.ENODEV, "No such device")

        monkeypatch.setattr(_segment, "mmap", _Mmap())
    if hidden == "populate":
        monkeypatch.delattr(os, "readv")
        monkeypatch.setattr(_segment, "_MADV_POPULATE_WRITE", 9999)
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=2 << 20) as writer:
        for step in range(3000):
            assert writer.append(point(step, 2000)) is not None
            assert disk_use(tmp_path / "j") <= 2 << 20
        writer.sync()
        first = everything(tmp_path / "j")
        assert numbers(first) == list(range(3000))
    with JournalWriter.recover(tmp_path / "j", RUN, max_disk=2 << 20) as writer:
        writer.append(point(3000))
        assert writer.dropped == {}
    assert numbers(everything(tmp_path / "j")) == list(range(3001))
    assert sum(step >= 2000 for step in steps(everything(tmp_path / "j"))) > 800


def test_a_full_disk_without_mmap_is_survived(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain writes fail in the middle of a segment: the torn frame is written over, nothing is numbered twice."""
    monkeypatch.setattr(_segment, "mmap", None)
    with JournalWriter.create(small_disk / "j", RUN) as writer:
        taken = 0
        while writer.append(point(taken, 2000)) is not None:
            taken += 1
        assert taken * 2000 > 1 << 20
        (small_disk / "j" / "00000001.seg").unlink()
        _until_appended(writer, point(-1))
        dropped = dict(writer.dropped)
    items = everything(small_disk / "j")
    assert steps(items)[-2:] == [taken - 1, -1]
    assert _told(small_disk / "j") == dropped
    assert len(gaps(items)) == 1


def test_a_hung_disk_stalls_an_append_once_and_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a segment cannot be made records are dropped at once, and writing goes on when the disk does."""
    gate = threading.Event()
    allocate = os.posix_fallocate
    with JournalWriter.create(tmp_path / "j", RUN) as writer:

        def hang(fd: int, offset: int, size: int) -> None:
            gate.wait(60)
            allocate(fd, offset, size)

        monkeypatch.setattr(os, "posix_fallocate", hang)
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
        _until_appended(writer, point(-1))
        dropped = dict(writer.dropped)
    assert _told(tmp_path / "j") == dropped
    assert steps(everything(tmp_path / "j"))[-1] == -1


STRESS = """
import signal, sys, time
from pathlib import Path
from tracker_bridge.journal._preparer import Preparer, SlowDiskError
from tracker_bridge.journal._store import SegmentStore
folder = Path(sys.argv[1])
preparer = Preparer(SegmentStore(folder, 1 << 40, "drop_oldest", None))
number, interrupted, pause = 1, 0, 1e-6
signal.signal(signal.SIGALRM, signal.default_int_handler)  # what Ctrl-C does
end = time.monotonic() + 8
while time.monotonic() < end and interrupted < 3000:
    pause = pause + 1e-6 if pause < 4e-5 else 1e-6
    try:
        signal.setitimer(signal.ITIMER_REAL, pause)
        try:
            segment = preparer.take(number, 65536, 4096, number)
            number += 1
            segment.release()
        except SlowDiskError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for file in folder.glob("*"):
            file.unlink(missing_ok=True)
    except KeyboardInterrupt:  # the last one may come late
        interrupted += 1
begun = time.monotonic()
while True:
    try:
        preparer.take(number, 65536, 4096, number)
        break
    except SlowDiskError:
        assert time.monotonic() - begun < 20
print(interrupted, number)
"""


def test_ctrl_c_while_an_append_waits_for_its_segment_leaves_no_lock_behind(tmp_path: Path) -> None:
    """Interrupts at any place of the wait, thousands: the next wait ends (naive: an `Event`'s lock is never freed)."""
    done = subprocess.run(
        [sys.executable, "-c", STRESS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    interrupted, taken = map(int, done.stdout.split())
    assert interrupted > 100
    assert taken > 1


def test_the_journal_works_without_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started the appending one makes the segments itself."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=2 << 20) as writer:
        for step in range(3000):
            assert writer.append(point(step, 2000)) is not None
    assert numbers(everything(tmp_path / "j")) == list(range(3000))
