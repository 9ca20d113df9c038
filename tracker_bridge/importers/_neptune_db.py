"""Neptune's local databases (`run_operations.sqlite3` of neptune-scale, version v5) to records, without its SDK.

These are runs that were logged offline, or that no server took any more. Nothing in them is ever unpickled (the table
`operation_errors` holds pickles and is not read), and only files below the given path are taken.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from itertools import repeat
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np

from tracker_bridge.config import scrub
from tracker_bridge.importers._files import allowed_file
from tracker_bridge.importers._lanes import BoolArray, IntArray, Lanes
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, fingerprint_of
from tracker_bridge.importers._neptune_wire import (
    Bins,
    Create,
    FileRef,
    Update,
    exact_step,
    parse_create,
    parse_update,
    quick_appends,
)
from tracker_bridge.importers._own_neptune import restored
from tracker_bridge.importers._rows import rows
from tracker_bridge.importers._sqlite import opened, tables
from tracker_bridge.importers._wire import WireError
from tracker_bridge.records import (
    Artifact,
    Histogram,
    Metrics,
    Params,
    Record,
    RunFinished,
    RunStarted,
    Step,
    Tags,
    Text,
    pack_values,
)

_FILE = "run_operations.sqlite3"
_VERSION = "v5"
_BATCH = 4096
_FETCH = 64
_BATCH_BYTES = 8 << 20
_MAX_OPERATION = 4 << 20  # the SDK ends at 2 MiB
_OPERATIONS = """
    SELECT sequence_id, timestamp, operation_type,
        CASE WHEN typeof(operation) = 'blob' AND length(operation) <= ? THEN operation ELSE x'' END
    FROM run_operations ORDER BY sequence_id"""
_MAX_NAMES = 200_000
_UPDATE, _CREATE = 0, 1
_TAGS, _GROUP_TAGS = "sys/tags", "sys/group_tags"
_STARTED = re.compile(r"_(\d{16,20})\Z")


def discover(kind: str, path: str) -> Iterator[ForeignRun]:
    """A run for each (project, run id); the databases of a run that was opened several times belong together."""
    root = Path(path)
    if root.is_file():
        databases = [root]
    elif root.is_dir():
        places = [(place, files) for place, _, files in os.walk(root)]
        databases = sorted(Path(place, _FILE) for place, files in places if _FILE in files)
    else:
        raise FileNotFoundError(f"there is no file or directory {path}")
    groups: dict[tuple[str, ...], list[Path]] = {}
    experiments: dict[tuple[str, ...], str | None] = {}
    for database in databases:
        identity, experiment = _identify(database)
        groups.setdefault(identity, []).append(database)
        experiments[identity] = experiments.get(identity) or experiment
    for identity, members in groups.items():
        members.sort(key=_opened_at)
        yield ForeignRun(
            kind=kind,
            paths=tuple(map(str, members)),
            identity=identity,
            fingerprint=fingerprint_of([file for member in members for file in _with_log(member)]),
            root=str(root if root.is_dir() else root.parent),
            project=identity[0] if len(identity) == 2 else None,
            experiment=experiments[identity],
            name=identity[-1],
            file_roots=tuple(sorted({str(_working_directory(member)) for member in members})),
        )


def _identify(database: Path) -> tuple[tuple[str, ...], str | None]:
    """(project, run id), experiment. Where the database does not say: its folder, and reading it explains."""
    try:
        with opened(database) as db:
            row = db.execute("SELECT project, run_id FROM metadata ORDER BY id LIMIT 1").fetchone()
            if row is None or not all(isinstance(part, str) for part in row):
                return (database.parent.name,), None
            first = db.execute(_OPERATIONS, (_MAX_OPERATION,)).fetchone()
            experiment = parse_create(first[3]).experiment if first and first[2] == _CREATE else None
            return (row[0], row[1]), experiment
    except (ForeignFormatError, WireError, OSError):
        return (database.parent.name,), None


def _opened_at(database: Path) -> tuple[int, str]:
    match = _STARTED.search(database.parent.name)
    return (int(match[1]) if match else 0, str(database))


def _with_log(database: Path) -> list[Path]:
    return [database, *(wal for wal in [_log(database)] if wal.is_file())]


def _log(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def _working_directory(database: Path) -> Path:
    """Where the script ran, by the SDK's default layout `<cwd>/.neptune/<run>/run_operations.sqlite3`."""
    folder = database.resolve().parent
    return folder.parent.parent if folder.parent.name == ".neptune" else folder


def read(run: ForeignRun, reading: Reading) -> Iterator[Record]:
    """The records of one run."""
    return restored(_read(run, reading))


def _read(run: ForeignRun, reading: Reading) -> Iterator[Record | Iterator[Metrics]]:
    reader = _Reader(run, reading)
    for path in run.paths:
        try:
            with opened(Path(path)) as db:
                yield from reader.database(Path(path), db)
        except ForeignFormatError as error:
            reading.on_damage(error.damage)
    yield from reader.end()


class _Names(dict[bytes, str]):
    """Names by their bytes, so that each is decoded once; bounded."""

    def __missing__(self, key: bytes) -> str:
        if len(self) >= _MAX_NAMES:
            self.clear()
        name = self[key] = key.decode("utf-8", "replace")
        return name


class _Reader:
    """Turns the operations of a run's databases into records; runs of points come as iterators."""

    def __init__(self, run: ForeignRun, reading: Reading) -> None:
        self._run = run
        self._reading = reading
        self._name = _Names().__getitem__
        self._last_step: dict[str, Step] = {}
        self._files: dict[str, tuple[str, str]] = {}
        self._roots = (run.root, *run.file_roots)
        self._started = False
        self._last_ns = 0
        self._failed = False

    def database(self, path: Path, db: sqlite3.Connection) -> Iterator[Record | Iterator[Metrics]]:
        present = tables(db)
        if not {"run_operations", "metadata"} <= present:
            raise ForeignFormatError(Damage(str(path), "", "not a database of neptune-scale: its tables are missing"))
        row = db.execute("SELECT version FROM metadata ORDER BY id LIMIT 1").fetchone()
        if row is None or row[0] != _VERSION:
            found = "no version" if row is None else f"version {str(row[0])[:20]!r}"
            self._reading.on_damage(Damage(str(path), "table metadata", f"{found}; this importer knows {_VERSION!r}"))
        if "file_upload_requests" in present:
            wanted = "SELECT destination, source_path, mime_type FROM file_upload_requests"
            self._files = {str(to): (str(source), str(mime)) for to, source, mime in db.execute(wanted)}
        yield from self._start(db)
        cursor = db.execute(_OPERATIONS, (_MAX_OPERATION,))
        for batch in _batches(cursor):
            yield from self._batch(path, batch)

    def end(self) -> Iterator[Record]:
        if not self._started:
            yield RunStarted(0, self._run.run_id, 1, 0, "", self._provenance(None))
        # A clean close folds the write-ahead log into the database; only a killed process leaves one behind.
        killed = any(_log(Path(path)).is_file() and _log(Path(path)).stat().st_size for path in self._run.paths)
        yield RunFinished(self._last_ns, "failed" if self._failed else "crashed" if killed else "finished")

    def _provenance(self, fork: dict[str, Any] | None) -> dict[str, Any]:
        source = os.path.abspath(self._run.source)
        provenance: dict[str, Any] = {"imported_from": {"kind": self._run.kind, "source": source}}
        if fork:
            provenance["forked_from"] = fork
        return provenance

    def _start(self, db: sqlite3.Connection) -> Iterator[Record]:
        lost = db.execute("SELECT min(sequence_id) FROM run_operations").fetchone()[0]
        if isinstance(lost, int) and lost > 1:
            self._reading.left_out["operations that Neptune's server had already taken"] += lost - 1
        if self._started:
            return
        first = db.execute(_OPERATIONS, (_MAX_OPERATION,)).fetchone()
        create = Create()
        if first is not None and first[2] == _CREATE:
            # A broken one is reported where the operation itself is read.
            with contextlib.suppress(WireError):
                create = parse_create(first[3])
        time_ns = create.time_ns if create.time_ns is not None else 0 if first is None else _milliseconds(first[1])
        self._started = True
        self._last_ns = time_ns
        yield RunStarted(time_ns, self._run.run_id, 1, 0, "", self._provenance(create.fork))

    def _batch(self, path: Path, batch: list[tuple[Any, ...]]) -> Iterator[Record | Iterator[Metrics]]:
        _, _, kinds, blobs = zip(*batch, strict=True)
        ends = np.cumsum(np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs)))
        starts = np.concatenate(([0], ends[:-1]))
        updates = np.fromiter(map(eq, kinds, repeat(_UPDATE)), dtype=np.bool_, count=len(kinds))
        quick = _Quick(b"".join(blobs), starts, ends, updates)
        edges = np.flatnonzero(np.diff(quick.single.astype(np.int8))) + 1
        for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(batch)], strict=True):
            if quick.single[low]:
                yield self._singles(quick, low, high)
                continue
            for index in range(low, high):
                row = self._row(quick, index) if quick.header[index] else None
                if row is not None:
                    yield self._noted(row)
                else:
                    yield from self._operation(path, batch[index])

    def _noted(self, row: Metrics) -> Metrics:
        self._last_step.update(dict.fromkeys(row.values, row.step))
        self._last_ns = max(self._last_ns, row.time_ns)
        return row

    def _singles(self, quick: _Quick, low: int, high: int) -> Iterator[Metrics]:
        names = list(map(self._name, quick.keys(low, high)))
        times, values = quick.time_ns[low:high], quick.values[low:high]
        self._last_ns = max(self._last_ns, int(times.max()))
        if quick.micro[low:high].any():
            steps = list(map(exact_step, quick.whole[low:high].tolist(), quick.micro[low:high].tolist()))
            self._last_step.update(zip(names, steps, strict=True))
            points = zip(times.tolist(), steps, names, values.tolist(), strict=True)
            return (Metrics(time_ns, step, {key: value}) for time_ns, step, key, value in points)
        self._last_step.update(zip(names, quick.whole[low:high].tolist(), strict=True))
        return rows(times, quick.whole[low:high], names, values)

    def _row(self, quick: _Quick, index: int) -> Metrics | None:
        values = quick_appends(quick.data, int(quick.body[index]), int(quick.ends[index]), self._name)
        if not values:
            return None
        return Metrics(int(quick.time_ns[index]), exact_step(int(quick.whole[index]), int(quick.micro[index])), values)

    def _operation(self, path: Path, row: tuple[Any, ...]) -> Iterator[Record]:
        sequence, timestamp, kind, blob = row
        where = f"operation {sequence}"
        if not blob:
            self._reading.on_damage(Damage(str(path), where, "an operation is empty, too large or no blob"))
            return
        if kind == _CREATE:
            try:
                parse_create(blob)
            except WireError as error:
                self._reading.on_damage(Damage(str(path), where, f"not a Neptune operation: {error}"))
            return
        if kind != _UPDATE:
            self._reading.left_out[f"Neptune operations of the unknown type {str(kind)[:20]}"] += 1
            return
        try:
            update = parse_update(blob)
        except WireError as error:
            self._reading.on_damage(Damage(str(path), where, f"not a Neptune operation: {error}"))
            return
        time_ns = update.time_ns if update.time_ns is not None else _milliseconds(timestamp)
        self._last_ns = max(self._last_ns, time_ns)
        yield from self._assigned(time_ns, update)
        yield from self._tagged(time_ns, update)
        if update.preview:
            # A preview is a guess that a later point of the same step replaces.
            self._reading.left_out["preview points"] += len(update.append)
            return
        yield from self._appended(time_ns, update)

    def _assigned(self, time_ns: int, update: Update) -> Iterator[Record]:
        params: dict[str, Any] = {}
        for name, value in update.assign.items():
            if isinstance(value, FileRef):
                yield from self._file(time_ns, name, None, value)
            elif isinstance(value, datetime):
                params[name] = value.isoformat()
            elif isinstance(value, str):
                params[name] = scrub(value, ())
            elif isinstance(value, Bins):
                self._reading.left_out["histograms without a step"] += 1
            else:
                params[name] = value
        self._failed = bool(params.get("sys/failed", self._failed))
        if params:
            yield Params(time_ns, params)

    def _tagged(self, time_ns: int, update: Update) -> Iterator[Record]:
        add: dict[str, str | None] = {}
        remove: list[str] = []
        for path, tag, added in update.tags:
            if path not in (_TAGS, _GROUP_TAGS):
                self._reading.left_out["changes of string sets other than tags"] += 1
            elif added:
                add[tag] = None
            else:
                remove.append(tag)
        if add or remove:
            yield Tags(time_ns, add, tuple(remove))

    def _appended(self, time_ns: int, update: Update) -> Iterator[Record]:
        scalars: dict[Step, dict[str, float]] = {}
        for name, value in update.append.items():
            step = update.step if update.step is not None else self._next_step(name)
            if isinstance(value, (float, int)):
                scalars.setdefault(step, {})[name] = float(value)
            elif isinstance(value, str):
                yield Text(time_ns, name, value, step)
            elif isinstance(value, Bins):
                yield Histogram(time_ns, name, step, pack_values(value.edges), pack_values(value.counts))
            elif isinstance(value, FileRef):
                yield from self._file(time_ns, name, step, value)
            else:
                self._reading.left_out["points of an unknown type"] += 1
        for step, row in scalars.items():
            yield self._noted(Metrics(time_ns, step, row))

    def _next_step(self, name: str) -> Step:
        """What Neptune's server does with a point without a step: one more than the series' last."""
        known = self._last_step.get(name)
        return 0 if known is None else int(known) + 1

    def _file(self, time_ns: int, name: str, step: Step | None, value: FileRef) -> Iterator[Record]:
        source, media_type = self._files.get(value.path, ("", ""))
        found = allowed_file(source, self._roots) if source else None
        if found is not None:
            yield Artifact(time_ns, name, str(found), step, media_type or value.media_type)
        elif source and os.path.isfile(source):
            self._reading.left_out["files outside of the imported path"] += 1
        else:
            self._reading.left_out["files that no longer exist"] += 1


class _Quick:
    """A batch of updates in lockstep: step and timestamp of each, and the value where there is just one.

    `header`: step and timestamp were read and `body` is where the rest begins; `single`: the rest is one float64
    append. All arrays are [N].
    """

    def __init__(self, data: bytes, starts: IntArray, ends: IntArray, updates: BoolArray) -> None:
        self.data = data
        self.ends = ends
        lanes = Lanes(data, starts, ends)
        lanes.keep(updates)
        lanes.expect(0x0A)  # UpdateRunSnapshot.step
        _, stop = lanes.span()
        self.whole = lanes.optional_varint(0x08).astype(np.int64)
        self.micro = lanes.optional_varint(0x10).astype(np.int64)
        lanes.keep(lanes.at == stop)
        lanes.expect(0x12)  # UpdateRunSnapshot.timestamp
        _, stop = lanes.span()
        seconds = lanes.optional_varint(0x08)
        nanos = lanes.optional_varint(0x10)
        lanes.keep((lanes.at == stop) & (seconds < 9_000_000_000) & (nanos < 1_000_000_000))
        with np.errstate(over="ignore"):
            self.time_ns = seconds.astype(np.int64) * 1_000_000_000 + nanos.astype(np.int64)
        self.body = lanes.at.copy()
        self.header = lanes.alive.copy()
        lanes.expect(0x42)  # UpdateRunSnapshot.append, the only one: its entry ends with the message
        _, stop = lanes.span()
        lanes.keep(stop == ends)
        lanes.expect(0x0A)  # its key
        self._key_starts, self._key_ends = lanes.span()
        lanes.jump(self._key_ends)
        for byte in (0x12, 0x09, 0x09):  # its value: a message of 9 bytes with a float64
            lanes.expect(byte)
        self.values = lanes.fixed("<f8")
        self.single = lanes.done()

    def keys(self, low: int, high: int) -> list[bytes]:
        data = self.data
        spans = zip(self._key_starts[low:high].tolist(), self._key_ends[low:high].tolist(), strict=True)
        return [data[a:b] for a, b in spans]


def _batches(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    """Rows in batches that are bounded by number and by bytes."""
    batch: list[tuple[Any, ...]] = []
    size = 0
    while some := cursor.fetchmany(_FETCH):
        batch += some
        size += sum([len(row[3]) for row in some])
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _milliseconds(value: Any) -> int:
    return value * 1_000_000 if isinstance(value, int) and abs(value) < 9_000_000_000_000 else 0
