"""Small journals for the tests of this folder, and a plain way to look at all of one."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tracker_bridge.journal import Entry, Gap, JournalReader, JournalWriter, Position
from tracker_bridge.records import AnyRecord, Metrics

RUN = "run-1"


def point(step: int, size: int = 0) -> Metrics:
    """A record that is told apart by its step; `size` bytes longer than it must be."""
    return Metrics(1_700_000_000_000_000_000 + step, step, {"loss" + "x" * size: float(step)})


def write(folder: Path, count: int, first: int = 0, size: int = 0) -> None:
    """A closed journal of `count` points, continued if it exists."""
    with JournalWriter.recover(folder, RUN) as writer:
        for step in range(first, first + count):
            assert writer.append(point(step, size)) is not None


def drain(reader: JournalReader, max_records: int = 10_000) -> list[Entry | Gap]:
    """Everything that is there now."""
    items: list[Entry | Gap] = []
    while more := reader.read(max_records):
        items += more
    return items


def everything(folder: Path, position: Position = Position()) -> list[Entry | Gap]:  # noqa: B008
    """Everything from `position` on."""
    with JournalReader(folder, position) as reader:
        return drain(reader)


def records(items: list[Entry | Gap]) -> list[AnyRecord]:
    """The records of the entries."""
    return [item.record for item in items if isinstance(item, Entry)]


def steps(items: list[Entry | Gap]) -> list[int]:
    """The steps of the points."""
    return [int(record.step) for record in records(items) if isinstance(record, Metrics)]


def gaps(items: list[Entry | Gap]) -> list[Gap]:
    """The gaps."""
    return [item for item in items if isinstance(item, Gap)]


def numbers(items: list[Entry | Gap]) -> list[int]:
    """Every sequence that is accounted for, by an entry or a gap, in order."""
    found: list[int] = []
    for item in items:
        found += range(item.sequence, item.sequence + item.count) if isinstance(item, Gap) else [item.sequence]
    return found


def disk_use(folder: Path) -> int:
    """Bytes on disk of the segments, some of which may be deleted in this moment."""
    used = 0
    for file in folder.glob("*.seg"):
        with contextlib.suppress(FileNotFoundError):
            used += file.stat().st_blocks * 512
    return used
