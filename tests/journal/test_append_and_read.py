"""What is appended is read, in order, from any place, while and after it is written."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.journal.journals import RUN, drain, everything, gaps, numbers, point, records, steps, write
from tracker_bridge.journal import (
    Entry,
    Gap,
    JournalError,
    JournalReader,
    JournalWriter,
    Position,
    WriterBusyError,
    _reader,
    _segment,
    scan,
)
from tracker_bridge.records import (
    Dropped,
    Metrics,
    NormVector,
    Params,
    RunStarted,
    SeriesTable,
    Snapshot,
    Tags,
    Text,
    encode,
    pack_values,
    unpack_values,
)


def test_records_come_back_equal_and_numbered_from_zero(tmp_path: Path) -> None:
    """Each kind of record survives, and its number is its place."""
    written = [
        RunStarted(1, RUN, 1, 2, "host"),
        Params(2, {"optimizer": {"lr": 1e-3, "betas": [0.9, 0.999]}, "name": None}),
        Tags(3, {"a": None, "k": "v"}),
        SeriesTable(4, 0, "gradients", ("a", "b"), (1, 2)),
        NormVector(5, 7, 0, pack_values(np.array([np.nan, np.inf])), total=None, skipped=True),
        point(8),
    ]
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        assert [writer.append(record) for record in written] == list(range(6))
        assert writer.sequence == 6
    items = everything(tmp_path / "j")
    assert numbers(items) == list(range(6))
    assert records(items) == written
    vector = records(items)[4]
    assert isinstance(vector, NormVector)
    assert np.isnan(unpack_values(vector.values)[0])


def test_a_reader_sees_each_record_as_soon_as_append_returned(tmp_path: Path) -> None:
    """Nothing is held back in the writer."""
    with JournalReader(tmp_path / "j") as reader:
        assert reader.read() == []
        assert reader.end() == 0
        with JournalWriter.create(tmp_path / "j", RUN) as writer:
            for step in range(50):
                writer.append(point(step))
                assert reader.end() == step + 1
                assert steps(reader.read()) == [step]
        assert reader.read() == []


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_every_position_leads_to_exactly_the_rest(tmp_path: Path, batch: int) -> None:
    """A position that was stored continues right after the last record, with and without its place in the file."""
    write(tmp_path / "j", 40)
    write(tmp_path / "j", 40, first=40)
    with JournalReader(tmp_path / "j") as reader:
        seen: list[int] = []
        while items := reader.read(batch):
            assert len(items) <= batch
            seen += steps(items)
            rest = list(range(len(seen), 80))
            assert steps(everything(tmp_path / "j", reader.position)) == rest
            assert steps(everything(tmp_path / "j", Position(reader.position.sequence))) == rest
    assert seen == list(range(80))


def test_a_position_with_a_wrong_place_still_leads_to_its_sequence(tmp_path: Path) -> None:
    """The sequence decides, not the file offset beside it."""
    write(tmp_path / "j", 100)
    for place in (Position(60, 1, 72), Position(60, 1, 1 << 40), Position(60, 99, 64), Position(60, 1, 64)):
        assert steps(everything(tmp_path / "j", place)) == list(range(60, 100)), place


def test_read_keeps_to_max_bytes_but_makes_progress(tmp_path: Path) -> None:
    """A batch holds about `max_bytes`, and at least one record however large."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        for step in range(20):
            writer.append(point(step, 100_000))
    with JournalReader(tmp_path / "j") as reader:
        batches = [len(reader.read(max_bytes=1)) for _ in range(5)]
        assert batches == [1] * 5
        assert len(reader.read(max_bytes=300_000)) in (3, 4)
        assert len(drain(reader)) in (11, 12)


def test_segments_grow_and_a_closed_journal_takes_no_more_than_its_content(tmp_path: Path) -> None:
    """A tiny run occupies kilobytes, and nothing that was preallocated stays."""
    write(tmp_path / "small", 3)
    assert sum(file.stat().st_size for file in (tmp_path / "small").iterdir()) < 4096
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        for step in range(300):
            writer.append(point(step, 20_000))
    sizes = [file.stat().st_size for file in sorted((tmp_path / "j").glob("*.seg"))]
    assert len(sizes) == 4
    assert sizes[0] <= 256 << 10 < sizes[1] <= 1 << 20 < sizes[2] <= 4 << 20
    assert sum(sizes) < 300 * 20_200
    assert steps(everything(tmp_path / "j")) == list(range(300))


def test_the_frame_on_disk_is_what_the_format_says(tmp_path: Path) -> None:
    """Length, check over sequence and payload, sequence, payload, at a multiple of 8: written down independently."""
    payload = encode(point(0))
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        writer.append(point(0))
        writer.append_encoded(payload)
    data = (tmp_path / "j" / "00000001.seg").read_bytes()
    second = 64 + (16 + len(payload) + 7) // 8 * 8
    assert data[:8] == b"tbridge\n"
    assert struct.unpack_from("<IIQ", data, second) == (len(payload), zlib.crc32(payload) ^ 1, 1)
    assert data[second + 16 : second + 16 + len(payload)] == payload
    assert struct.unpack_from("<I", data, len(data) - 16) == (0xFFFFFFFF,)


def test_create_refuses_a_folder_that_holds_a_journal(tmp_path: Path) -> None:
    """Nobody's records are overwritten by mistake."""
    write(tmp_path / "j", 1)
    with pytest.raises(JournalError, match="recover"):
        JournalWriter.create(tmp_path / "j", RUN)
    assert steps(everything(tmp_path / "j")) == [0]


def test_recover_continues_the_numbers_and_the_definitions(tmp_path: Path) -> None:
    """A resumed run goes on where it was, in a new segment that begins with what was defined."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        writer.append(Params(1, {"a": {"x": 1, "y": 2}}))
        writer.append(Params(2, {"a": {"y": 3}}))
        writer.append(Tags(3, {"t": None, "u": None}))
        writer.append(Tags(4, {}, ("u",)))
        table = SeriesTable(5, 3, "gradients", ("l",), (1,))
        writer.append(table)
    with JournalWriter.recover(tmp_path / "j", RUN) as writer:
        assert writer.append(point(0)) == 6
    items = everything(tmp_path / "j", Position(5))
    snapshot = records(items)[0]
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.params, snapshot.tags, snapshot.tables) == ({"a": {"x": 1, "y": 3}}, {"t": None}, (table,))
    assert numbers(everything(tmp_path / "j")) == list(range(7))


def test_recover_refuses_another_runs_journal(tmp_path: Path) -> None:
    """Two runs never share a journal, and the refused one stays as it is."""
    write(tmp_path / "j", 2)
    with pytest.raises(JournalError, match="another run"):
        JournalWriter.recover(tmp_path / "j", "run-2")
    write(tmp_path / "j", 1, first=2)
    assert steps(everything(tmp_path / "j")) == [0, 1, 2]


def test_first_sequence_keeps_delivered_numbers_from_being_used_again(tmp_path: Path) -> None:
    """Where a power cut took records that a backend has, the numbers go on after its cursor and the loss is told."""
    write(tmp_path / "j", 3)
    with JournalWriter.recover(tmp_path / "j", RUN, first_sequence=10) as writer:
        assert writer.append(point(10)) == 10
    items = everything(tmp_path / "j")
    assert gaps(items) == [Gap(3, 7, "corrupt")]
    assert steps(everything(tmp_path / "j", Position(10))) == [10]


def test_a_second_writer_gets_a_clear_error(tmp_path: Path) -> None:
    """Neither this process nor another can append beside the writer; when it is closed they can."""
    script = f"""
from tracker_bridge.journal import JournalWriter, WriterBusyError
try:
    JournalWriter.recover({str(tmp_path / "j")!r}, {RUN!r}).close()
except WriterBusyError as error:
    print(error)
else:
    print("free")
"""

    def other() -> str:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        with pytest.raises(WriterBusyError, match="another writer"):
            JournalWriter.recover(tmp_path / "j", RUN)
        assert "another writer is appending to" in other()
        assert writer.append(point(0)) == 0
    assert other() == "free\n"


def test_what_is_appended_after_close_is_counted(tmp_path: Path) -> None:
    """A closed journal drops and counts; closing twice is harmless."""
    writer = JournalWriter.create(tmp_path / "j", RUN)
    writer.close()
    writer.close()
    assert writer.append(point(0)) is None
    assert writer.append(Params(1, {"a": 1})) is None
    writer.sync()
    assert writer.dropped == {"closed": 2}
    assert everything(tmp_path / "j") == []


def test_threads_append_without_losing_or_doubling_anything(tmp_path: Path) -> None:
    """Eight threads, across several segments: each record once, each thread's in order, no number missing."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:

        def work(thread: int) -> None:
            for index in range(500):
                writer.append(point(thread * 1000 + index, 500))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.dropped == {}
    items = everything(tmp_path / "j")
    assert numbers(items) == list(range(4000))
    for thread in range(8):
        assert [step for step in steps(items) if step // 1000 == thread] == [thread * 1000 + i for i in range(500)]


def test_unknown_records_are_gaps_and_do_not_stop_the_reader(tmp_path: Path) -> None:
    """What a newer version wrote is reported by number, and what follows is read."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        writer.append(point(0))
        writer.append_encoded(b"\x93\x63\x01\x02")  # [99, 1, 2]
        writer.append(point(2))
    assert [type(item).__name__ for item in everything(tmp_path / "j")] == ["Entry", "Gap", "Entry"]
    assert gaps(everything(tmp_path / "j")) == [Gap(1, 1, "unknown")]


def test_a_newer_journal_format_is_a_clear_error(tmp_path: Path) -> None:
    """The message names the folder and the remedy."""
    write(tmp_path / "j", 1)
    file = tmp_path / "j" / "00000001.seg"
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 8, 99)
    struct.pack_into("<I", data, 60, zlib.crc32(data[:60]))
    file.write_bytes(data)
    with pytest.raises(JournalError, match="pip install -U"):
        everything(tmp_path / "j")
    with pytest.raises(JournalError, match="pip install -U"):
        JournalWriter.recover(tmp_path / "j", RUN)


def test_a_record_that_is_too_large_is_counted_and_told_in_the_journal(tmp_path: Path) -> None:
    """The limit is an eighth of `max_disk`; what follows is not affected."""
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=64 << 10) as writer:
        assert writer.append(point(0)) == 0
        assert writer.append(point(1, 9000)) is None
        assert writer.append(point(2)) is not None
        assert writer.dropped == {"too_large": 1}
    items = everything(tmp_path / "j")
    assert steps(items) == [0, 2]
    assert [record.reasons for record in records(items) if isinstance(record, Dropped)] == [{"too_large": 1}]


@pytest.mark.parametrize(("option", "value"), [("max_disk", 1000), ("when_full", "block")])
def test_bad_options_are_named(tmp_path: Path, option: str, value: object) -> None:
    """A wrong option is a ValueError that names it, before anything is made."""
    with pytest.raises(ValueError, match=option):
        JournalWriter.create(tmp_path / "j", RUN, **{option: value})  # type: ignore[arg-type]
    assert not (tmp_path / "j").exists()


def test_a_copy_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    """A run directory copied while its writer lives, and made read-only, is read to where it was copied."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        for step in range(10):
            writer.append(point(step))
        copy = tmp_path / "copy"
        copy.mkdir()
        for file in (tmp_path / "j").glob("*.seg"):
            (copy / file.name).write_bytes(file.read_bytes())
            (copy / file.name).chmod(0o400)
        copy.chmod(0o500)
        writer.append(point(10))
    try:
        assert steps(everything(copy)) == list(range(10))
        assert steps(list(scan(copy))) == list(range(10))
        with JournalReader(copy) as reader:
            assert reader.end() == 10
    finally:
        copy.chmod(0o700)


def test_no_descriptor_and_no_thread_stays(tmp_path: Path) -> None:
    """A closed writer and reader hold nothing open; neither does a writer that was forgotten."""
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    write(tmp_path / "j", 2000, size=1000)
    assert len(everything(tmp_path / "j")) == 2000
    forgotten = JournalWriter.recover(tmp_path / "j", RUN)
    forgotten.append(point(1))
    del forgotten
    JournalWriter.recover(tmp_path / "j", RUN).close()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_sync_returns_and_loses_nothing(tmp_path: Path) -> None:
    """`sync` covers segments that were sealed since the last one, also if some were deleted."""
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=64 << 10) as writer:
        for step in range(2000):
            writer.append(point(step))
        writer.sync()
        writer.append(point(2000))
        writer.sync()
        assert writer.dropped == {}
    assert steps(everything(tmp_path / "j"))[-1] == 2000


def test_entries_are_small_and_frozen() -> None:
    """Stages pass data that nobody can change."""
    entry = Entry(0, point(0))
    with pytest.raises(AttributeError):
        entry.sequence = 1  # type: ignore[misc]
    assert not hasattr(entry, "__dict__")


def test_a_reader_behind_a_writer_that_changes_segments_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the writer adds between two looks of one read, into the next segment too, is read, not called corrupt.

    Asked again whether there is a later segment, after the search of this one, the reader skipped 1,434 whole records.
    """
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        count = 0

        def put(more: int) -> None:
            nonlocal count
            for _ in range(more):
                writer.append(Text(count, "k", "x" * 100, None))
                count += 1

        put(1500)
        reader = JournalReader(tmp_path / "j")
        items = reader.read(1 << 30, 1 << 40)
        look, search = JournalReader._maybe_hole, _reader.find_frame

        def maybe_hole(self: JournalReader) -> bool:
            # The piece that was read held nothing; now one record arrives.
            monkeypatch.setattr(JournalReader, "_maybe_hole", look)
            put(1)
            return look(self)

        def find_frame(fd: int, offset: int, expected: int) -> tuple[int, int] | None:
            # Nothing follows that one; then the writer goes on, into the next segment.
            monkeypatch.setattr(_reader, "find_frame", search)
            found = search(fd, offset, expected)
            put(2000)
            return found

        monkeypatch.setattr(JournalReader, "_maybe_hole", maybe_hole)
        monkeypatch.setattr(_reader, "find_frame", find_frame)
        while more := reader.read():
            items += more
    while more := reader.read():
        items += more
    reader.close()
    assert gaps(items) == []
    assert numbers(items) == list(range(count))


@pytest.mark.parametrize("mapped", [True, False])
def test_ctrl_c_at_any_place_of_an_append_costs_no_other_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """A call that is interrupted may keep its record or not; no number and no place is used twice for it.

    Written and not counted, the next record took the same place, and a reader that was there already never saw it.
    """
    if not mapped:
        monkeypatch.setattr(_segment, "mmap", None)
    inside = {"_append_plain", "_put", "_place", "put", "write_at", "frame_size"}
    with JournalWriter.create(tmp_path / "j", RUN) as writer, JournalReader(tmp_path / "j") as reader:
        returned: list[int] = []
        seen: list[int] = []

        def look() -> None:
            for item in reader.read():
                assert not isinstance(item, Gap)
                assert isinstance(item.record, Metrics)
                seen.append(int(item.record.step))

        for step in range(400):
            left = step // 2 % 15

            def trace(frame: FrameType, event: str, _argument: object) -> Any:
                nonlocal left
                if event == "line" and frame.f_code.co_name in inside:
                    left -= 1
                    if left < 0:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return trace

            try:
                if step % 2:
                    sys.settrace(trace)
                writer.append(point(step))
            except KeyboardInterrupt:
                pass
            else:
                returned.append(step)
            finally:
                sys.settrace(None)
            look()
    look()
    assert seen == sorted(set(seen))
    assert set(returned) <= set(seen)
    assert len(returned) >= 200
