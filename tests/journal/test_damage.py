"""Bytes that are torn, flipped or missing: never a wrong record, never silence, never an endless loop."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from tests.journal.journals import RUN, drain, everything, gaps, numbers, point, records, steps, write
from tracker_bridge.journal import Gap, JournalReader, JournalWriter, Position, scan
from tracker_bridge.records import Metrics

COUNT = 6


@pytest.fixture
def two_segments(tmp_path: Path) -> tuple[Path, list[Metrics]]:
    """Records 0 to 5 in segment 1 and 6 to 11 in segment 2, both sealed."""
    write(tmp_path / "j", COUNT)
    write(tmp_path / "j", COUNT, first=COUNT)
    return tmp_path / "j", [point(step) for step in range(2 * COUNT)]


def _check(folder: Path, written: list[Metrics], *, complete: bool) -> None:
    """Every entry is what was written under its number; numbers are in order and, if `complete`, all told."""
    items = everything(folder)
    told = numbers(items)
    assert told == list(range(told[0] if told else 0, told[-1] + 1 if told else 0))
    if complete:
        assert told == list(range(len(written)))
    for item in items:
        if not isinstance(item, Gap):
            assert item.record == written[item.sequence]
    assert {gap.reason for gap in gaps(items)} <= {"corrupt"}
    assert sum(gap.count for gap in gaps(items)) <= 2


@pytest.mark.parametrize("change", ["flip", "invert", "zero"])
def test_any_byte_of_a_segment_that_others_follow_may_be_damaged(
    two_segments: tuple[Path, list[Metrics]], change: str
) -> None:
    """At each place: what is lost is at most two records, told as `corrupt`, and all others are read."""
    folder, written = two_segments
    file = folder / "00000001.seg"
    good = file.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] = {"flip": good[place] ^ 1, "invert": good[place] ^ 0xFF, "zero": 0}[change]
        file.write_bytes(bad)
        _check(folder, written, complete=True)


@pytest.mark.parametrize("change", ["flip", "invert", "zero"])
def test_any_byte_of_the_last_segment_may_be_damaged(two_segments: tuple[Path, list[Metrics]], change: str) -> None:
    """All others are read; after recovery the lost record is told and its number is not used again."""
    folder, written = two_segments
    file = folder / "00000002.seg"
    good = file.read_bytes()
    for place in range(64, len(good)):
        bad = bytearray(good)
        bad[place] = {"flip": good[place] ^ 1, "invert": good[place] ^ 0xFF, "zero": 0}[change]
        if bad == good:
            continue
        file.write_bytes(bad)
        _check(folder, written, complete=False)
        copy = folder.with_name(f"copy{place}")
        shutil.copytree(folder, copy)
        with JournalWriter.recover(copy, RUN) as writer:
            sequence = writer.append(point(99))
        items = everything(copy)
        assert sequence is not None
        assert numbers(items) == list(range(sequence + 1))
        assert steps(items)[-1] == 99
        lost = set(range(2 * COUNT)) - set(steps(items))
        assert len(lost) <= 1
        # A last record whose length is gone cannot be told from one that was never there.
        assert len(gaps(items)) == len(lost) or (lost == {2 * COUNT - 1} and sequence == 2 * COUNT - 1)
        shutil.rmtree(copy)


def test_a_segment_may_end_anywhere(two_segments: tuple[Path, list[Metrics]]) -> None:
    """A file cut at each length gives a prefix and no error, and recovery goes on behind it."""
    folder, _ = two_segments
    file = folder / "00000002.seg"
    good = file.read_bytes()
    for length in range(len(good)):
        file.write_bytes(good[:length])
        found = steps(everything(folder))
        assert found == list(range(len(found)))
        assert len(found) >= COUNT
        copy = folder.with_name(f"copy{length}")
        shutil.copytree(folder, copy)
        write(copy, 1, first=99)
        items = everything(copy)
        assert steps(items) == [*found, 99]
        assert numbers(items) == list(range(numbers(items)[-1] + 1))
        shutil.rmtree(copy)


def test_a_deleted_segment_in_the_middle_is_told(tmp_path: Path) -> None:
    """Someone else's deletion is a gap, too."""
    for first in range(0, 12, 4):
        write(tmp_path / "j", 4, first=first)
    (tmp_path / "j" / "00000002.seg").unlink()
    items = everything(tmp_path / "j")
    assert gaps(items) == [Gap(4, 4, "max_disk")]
    assert steps(items) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_hole_of_zero_pages_is_told(tmp_path: Path) -> None:
    """What a power cut leaves: pages that never reached the disk, with later ones that did."""
    write(tmp_path / "j", 2000)
    file = tmp_path / "j" / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[8192:16384] = bytes(8192)
    file.write_bytes(data)
    items = list(scan(tmp_path / "j"))
    assert numbers(items) == list(range(2000))
    assert [gap.reason for gap in gaps(items)] == ["corrupt"]
    assert steps(items)[-1] == 1999
    os.utime(file, (time.time() - 3600, time.time() - 3600))
    assert everything(tmp_path / "j") == items, "a follower does the same once the file is at rest"
    write(tmp_path / "j", 1, first=2000)
    assert steps(everything(tmp_path / "j"))[-1] == 2000
    assert numbers(everything(tmp_path / "j")) == list(range(2001))


def test_random_garbage_never_raises_and_never_loops(tmp_path: Path) -> None:
    """Many damaged places at once, in every file, with readers at many positions."""
    for first in range(0, 300, 100):
        write(tmp_path / "j", 100, first=first)
    good = {file: file.read_bytes() for file in (tmp_path / "j").glob("*.seg")}
    chance = random.Random(0)
    for _ in range(60):
        for file, content in good.items():
            bad = bytearray(content)
            for _ in range(chance.randrange(1, 30)):
                start = chance.randrange(len(bad))
                bad[start : start + chance.randrange(1, 300)] = chance.randbytes(chance.randrange(1, 300))
            file.write_bytes(bad)
        for position in (Position(), Position(150), Position(150, 2, 8 * chance.randrange(1000))):
            for item in everything(tmp_path / "j", position):
                if not isinstance(item, Gap):
                    assert item.record == point(item.sequence)


def test_a_damaged_tail_is_waited_for_and_passed_when_records_follow(tmp_path: Path) -> None:
    """A follower neither gives up nor skips: the gap comes with the next whole record."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer, JournalReader(tmp_path / "j") as reader:
        for step in range(3):
            writer.append(point(step))
        file = tmp_path / "j" / "00000001.seg"
        data = file.read_bytes()
        place = data.index(b"loss", data.index(b"loss", data.index(b"loss") + 1) + 1)
        with file.open("r+b") as handle:
            handle.seek(place)
            handle.write(b"LOSS")
        assert steps(reader.read()) == [0, 1]
        assert reader.read() == []
        writer.append(point(3))
        writer.append(point(4))
        deadline = time.monotonic() + 10
        items = drain(reader)
        while not items:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            items = drain(reader)
        assert gaps(items) == [Gap(2, 1, "corrupt")]
        assert steps(items) == [3, 4]


def test_a_header_that_is_damaged_costs_nothing(two_segments: tuple[Path, list[Metrics]]) -> None:
    """Frames say their own numbers; the header only saves looking for them."""
    folder, written = two_segments
    for number in (1, 2):
        file = folder / f"0000000{number}.seg"
        data = bytearray(file.read_bytes())
        data[:64] = b"\xff" * 64
        file.write_bytes(data)
    assert records(everything(folder)) == written
    assert steps(everything(folder, Position(8))) == list(range(8, 12))
    write(folder, 1, first=12)
    assert steps(everything(folder)) == list(range(13))
