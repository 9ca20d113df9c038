"""Shared by the importer tests: reading a run, and what must hold for every hostile file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from tracker_bridge.importers import Damage, ForeignFormatError, ForeignRun, Reading, discover
from tracker_bridge.records import Metrics, Params, Record, RunFinished, RunStarted, Tags, encode

R = TypeVar("R", bound=Record)


def only_run(kind: str, path: Path | str) -> ForeignRun:
    runs = list(discover(kind, path))
    assert len(runs) == 1, [run.paths for run in runs]
    return runs[0]


def records_of(kind: str, path: Path | str, reading: Reading | None = None) -> list[Record]:
    records = list(only_run(kind, path).records(reading))
    assert isinstance(records[0], RunStarted)
    assert isinstance(records[-1], RunFinished)
    for record in records:
        encode(record)
    return records


def of_type(records: list[Record], kind: type[R]) -> list[R]:
    return [record for record in records if isinstance(record, kind)]


def points_of(records: list[Record]) -> dict[str, list[tuple[int | float, float]]]:
    """Series -> [(step, value)] in order."""
    series: dict[str, list[tuple[int | float, float]]] = {}
    for record in of_type(records, Metrics):
        for name, value in record.values.items():
            series.setdefault(name, []).append((record.step, value))
    return series


def same(left: dict[str, list[tuple[int | float, float]]], right: dict[str, list[tuple[int | float, float]]]) -> bool:
    """Equality in which NaN equals NaN."""
    return repr({k: left[k] for k in sorted(left)}) == repr({k: right[k] for k in sorted(right)})


def params_of(records: list[Record]) -> dict[str, object]:
    merged: dict[str, object] = {}
    for record in of_type(records, Params):
        merged.update(record.params)
    return merged


def tags_of(records: list[Record]) -> dict[str, str | None]:
    tags: dict[str, str | None] = {}
    for record in of_type(records, Tags):
        tags.update(record.add)
        for tag in record.remove:
            tags.pop(tag, None)
    return tags


def status_of(records: list[Record]) -> str:
    return of_type(records, RunFinished)[-1].status


def read_hostile(kind: str, path: Path) -> tuple[int, list[str]]:
    """Read strictly, then leniently; nothing but a clear error may come out. Returns lenient records, complaints."""
    complaints: list[str] = []
    try:
        for run in discover(kind, path):
            for record in run.records():
                encode(record)
    except ForeignFormatError as error:
        complaints.append(str(error))
    count = 0
    damage: list[Damage] = []
    try:
        for run in discover(kind, path):
            for record in run.records(Reading(on_damage=damage.append)):
                encode(record)
                count += 1
    except ForeignFormatError as error:
        complaints.append(str(error))
    assert all(str(path) in complaint for complaint in complaints), complaints
    if damage:
        assert complaints, "damage that the strict reading did not report"
    return count, complaints


def flipped(data: bytes, seed: int, count: int) -> Iterator[tuple[int, bytes]]:
    """`data` with one flipped bit, at `count` places spread by `seed` (all bytes if there are fewer)."""
    rng = random.Random(seed)
    places = range(len(data)) if len(data) <= count else sorted(rng.sample(range(len(data)), count))
    for place in places:
        yield place, data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
