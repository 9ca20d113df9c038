"""TensorBoard event files to records, without TensorBoard: every directory with event files is a run, as it shows them.

Scalars take one of three roads, from fast to general: many one-value events in lockstep (`_lanes`), an event with the
same layout as an earlier one by a template (`_layouts`), anything else field by field (`_events`). All three give the
same records; the first two only recognise what they know.
"""

from __future__ import annotations

import heapq
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_bridge.importers._events import Event, Point, parse_event, points_of
from tracker_bridge.importers._files import allowed_file
from tracker_bridge.importers._lanes import Lanes
from tracker_bridge.importers._layouts import Layouts
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, fingerprint_of
from tracker_bridge.importers._own_tensorboard import OWN_FOLDER, PARAMS_FILE, host_of, is_own, late_folders, restored
from tracker_bridge.importers._rows import rows
from tracker_bridge.importers._tfrecord import Chunk, chunks
from tracker_bridge.importers._wire import WireError
from tracker_bridge.records import (
    Artifact,
    Histogram,
    Metrics,
    Params,
    Record,
    RunFinished,
    RunStarted,
    Text,
    pack_values,
)

_EVENT_FILE = re.compile(r"events\.out\.tfevents\.")
_NAME = re.compile(
    r"events\.out\.tfevents\.(?P<seconds>\d+)\.(?P<host>.+?)(?:\.(?P<pid>\d+)\.(?P<uid>\d+))?(?:\.v2)?\Z"
)
_HPARAMS_FOLDER = re.compile(r"\d{9,}\.\d+\Z")
_HEAD_RECORDS = 8
_NS_LIMIT = 2.0**62
_PURGED = "points that the writer itself purged (purge_step)"
_SESSION_STATUS = {1: "finished", 2: "failed", 3: "running"}
_IMAGE_SUFFIX = {
    b"\x89PNG": ("png", "image/png"),
    b"\xff\xd8\xff": ("jpg", "image/jpeg"),
    b"GIF8": ("gif", "image/gif"),
}


def discover(kind: str, path: str) -> Iterator[ForeignRun]:
    """A run for each directory with event files; the one sub-directory of `add_hparams` belongs to its parent."""
    root = Path(path)
    if root.is_file():
        yield _found(kind, root.parent, [root], root.parent)
        return
    if not root.is_dir():
        raise FileNotFoundError(f"there is no file or directory {path}")
    found: dict[Path, list[Path]] = {}
    for place, folders, files in os.walk(root):
        folders.sort()
        events = [Path(place, name) for name in sorted(files, key=_file_order) if _EVENT_FILE.search(name)]
        if events:
            found[Path(place)] = events
    children: dict[Path, list[Path]] = defaultdict(list)
    for folder in found:
        if folder.parent in found and _HPARAMS_FOLDER.match(folder.name):
            children[folder.parent].append(folder)
    merged = {only[0]: parent for parent, only in children.items() if len(only) == 1}
    late = {folder: late_folders(found, folder) for folder, events in found.items() if is_own(events)}
    hidden = {*merged, *chain.from_iterable(late.values())}
    for folder, events in found.items():
        if folder not in hidden:
            own = [found[child] for child, parent in merged.items() if parent == folder]
            behind = [found[child] for child in late.get(folder, ())]
            yield _found(kind, folder, [*events, *chain.from_iterable(own)], root, behind)


def _file_order(name: str) -> tuple[int, int, str]:
    match = _NAME.match(name)
    return (int(match["seconds"]), int(match["uid"] or 0), name) if match else (0, 0, name)


def _found(kind: str, folder: Path, events: list[Path], root: Path, late: Sequence[list[Path]] = ()) -> ForeignRun:
    inside = folder.relative_to(root).as_posix()
    name = folder.resolve().name if inside == "." else inside
    return ForeignRun(
        kind=kind,
        paths=tuple(map(str, events)),
        # The name of the first event file (time, host, process) tells runs apart wherever their folder is moved. The
        # bridge's own adapter renames its files as a run goes on, and has the run's id in the name of the folder.
        identity=(OWN_FOLDER if is_own(events) else events[0].name, folder.resolve().name),
        fingerprint=fingerprint_of([*events, *chain.from_iterable(late)]),
        root=str(root),
        name=name,
        details={"own": is_own(events), "late": [[str(path) for path in paths] for paths in late]},
    )


def read(run: ForeignRun, reading: Reading) -> Iterator[Record]:
    """The records of one run."""
    if not run.details.get("own"):
        return _read(run, reading)
    # Each directory is in the order of time by itself; late points go back to where they were logged.
    streams = [_read(run, reading), *(_late(run, reading, paths) for paths in run.details.get("late", ()))]
    merged = heapq.merge(*map(_timed, streams), key=lambda pair: pair[0])
    params_file = allowed_file(Path(run.paths[0]).parent / PARAMS_FILE, (run.root,))
    return restored((record for _, record in merged), params_file)


def _timed(records: Iterator[Record]) -> Iterator[tuple[float, Record]]:
    """Each record with the time at which its turn is: that of the last point before it, for all but points."""
    now = -math.inf
    for record in records:
        if isinstance(record, Metrics):
            now = max(now, record.time_ns)
        yield math.inf if isinstance(record, RunFinished) else now, record


def _read(run: ForeignRun, reading: Reading) -> Iterator[Record]:
    reader = _Reader(run, reading, "tensorboard")
    paths = [Path(path) for path in run.paths]
    for path, cutoff in zip(paths, _cutoffs(paths), strict=True):
        yield from reader.file(path, cutoff)
    yield from reader.end()


def _late(run: ForeignRun, reading: Reading, paths: list[str]) -> Iterator[Record]:
    reader = _Reader(run, reading, f"tensorboard-{Path(paths[0]).parent.name}")
    for path in paths:
        found = reader.file(Path(path), None)
        yield from (record for record in found if not isinstance(record, RunStarted))


def _cutoffs(paths: list[Path]) -> list[int | None]:
    """For each file the smallest step from which on a later file purges it."""
    quiet = Reading(on_damage=lambda _: None)
    purges: list[int | None] = []
    for path in paths[1:]:
        purge = None
        for chunk in chunks(path, quiet):
            for start, end in list(zip(chunk.starts, chunk.ends, strict=True))[:_HEAD_RECORDS]:
                try:
                    event = parse_event(chunk.data[start:end])
                except WireError:
                    break
                if event.session_start:
                    purge = event.step
                    break
            break
        purges.append(purge)
    cutoffs: list[int | None] = []
    lowest: int | None = None
    for purge in [*reversed(purges)]:
        lowest = purge if lowest is None else lowest if purge is None else min(lowest, purge)
        cutoffs.append(lowest)
    return [*reversed(cutoffs), None]


class _Reader:
    """Turns the chunks of a run's files into records; holds what is known about its tags."""

    def __init__(self, run: ForeignRun, reading: Reading, label: str) -> None:
        self._run = run
        self._reading = reading
        self._label = label
        self._layouts = Layouts()
        self._names: dict[bytes, str] = {}
        self._plugins: dict[str, str] = {}
        self._started = False
        self._last_ns = 0
        self._status = "finished"
        self._files = 0

    def file(self, path: Path, cutoff: int | None) -> Iterator[Record]:
        empty = True
        for chunk in chunks(path, self._reading):
            if not self._started:
                yield self._start(path, chunk)
            if empty:
                self._check_first(path, chunk)
                empty = False
            yield from self._chunk(path, chunk, cutoff)

    def end(self) -> Iterator[Record]:
        if not self._started:
            yield RunStarted(0, self._run.run_id, 1, 0, "", {"imported_from": self._provenance()})
        yield RunFinished(self._last_ns, self._status)

    def _provenance(self) -> dict[str, Any]:
        return {"kind": self._run.kind, "source": os.path.abspath(self._run.source)}

    def _start(self, path: Path, chunk: Chunk) -> Record:
        self._started = True
        match = _NAME.match(path.name)
        try:
            first = parse_event(chunk.data[chunk.starts[0] : chunk.ends[0]]).time_ns
        except WireError:
            first = 0
        self._last_ns = first
        host, pid = (host_of(match["host"]), int(match["pid"] or 0)) if match else ("", 0)
        return RunStarted(first, self._run.run_id, 1, pid, host, {"imported_from": self._provenance()})

    def _check_first(self, path: Path, chunk: Chunk) -> None:
        try:
            version = parse_event(chunk.data[chunk.starts[0] : chunk.ends[0]]).file_version
        except WireError:
            version = None
        if version is not None and not version.startswith("brain.Event:"):
            raise ForeignFormatError(
                Damage(str(path), f"file_version {version[:40]!r}", "not a TensorBoard event file")
            )

    def _chunk(self, path: Path, chunk: Chunk, cutoff: int | None) -> Iterator[Record]:
        """Records of one chunk in order."""
        starts = np.asarray(chunk.starts, dtype=np.int64)
        ends = np.asarray(chunk.ends, dtype=np.int64)
        fast = _decode_single(chunk.data, starts, ends)
        if len(fast.time_ns):
            self._last_ns = max(self._last_ns, int(fast.time_ns[fast.single].max(initial=0)))
        single = fast.single
        edges = np.flatnonzero(np.diff(single.astype(np.int8))) + 1
        for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(single)], strict=True):
            if single[low]:
                yield from self._singles(chunk, fast, low, high, cutoff)
            else:
                for index in range(low, high):
                    yield from self._event(path, chunk, index, cutoff)

    def _singles(self, chunk: Chunk, fast: _Singles, low: int, high: int, cutoff: int | None) -> Iterator[Record]:
        data, names = chunk.data, self._names
        tags = [
            data[a:b] for a, b in zip(fast.tag_starts[low:high].tolist(), fast.tag_ends[low:high].tolist(), strict=True)
        ]
        for tag in set(tags):
            if tag not in names:
                names[tag] = tag.decode("utf-8", "replace")
        labels = [names[tag] for tag in tags]
        times, steps, values = fast.time_ns[low:high], fast.steps[low:high], fast.values[low:high]
        if cutoff is not None and bool((steps >= cutoff).any()):
            kept = steps < cutoff
            self._reading.left_out[_PURGED] += int((~kept).sum())
            times, steps, values = times[kept], steps[kept], values[kept]
            labels = [label for label, keep in zip(labels, kept.tolist(), strict=True) if keep]
        yield from rows(times, steps, labels, values)

    def _event(self, path: Path, chunk: Chunk, index: int, cutoff: int | None) -> Iterator[Record]:
        try:
            event = parse_event(chunk.data[chunk.starts[index] : chunk.ends[index]])
            if event.summary is None:
                return
            self._last_ns = max(self._last_ns, event.time_ns)
            if cutoff is not None and event.step >= cutoff:
                self._reading.left_out[_PURGED] += 1
                return
            values = self._layouts.match(event.summary)
            if values is not None:
                yield Metrics(event.time_ns, event.step, values)
                return
            points = list(points_of(event.summary, self._plugins))
        except WireError as error:
            where = f"offset {chunk.offset + chunk.starts[index]}"
            self._reading.on_damage(Damage(str(path), where, f"not an event: {error}"))
            return
        yield from self._records(event, points)

    def _records(self, event: Event, points: list[Point]) -> Iterator[Record]:
        scalars: dict[str, float] = {}
        for point in points:
            if point.kind == "scalar":
                if point.tag in scalars:
                    yield Metrics(event.time_ns, event.step, scalars)
                    scalars = {}
                scalars[point.tag] = point.value
            elif point.kind == "text":
                for text in point.value:
                    yield Text(event.time_ns, point.tag.removesuffix("/text_summary"), text, event.step)
            elif point.kind == "histogram":
                edges, counts = point.value
                yield Histogram(event.time_ns, point.tag, event.step, pack_values(edges), pack_values(counts))
            elif point.kind == "params":
                yield Params(event.time_ns, point.value)
            elif point.kind == "status":
                self._status = _SESSION_STATUS.get(point.value, self._status)
            elif point.kind == "file":
                yield from self._media(event, point)
            elif point.kind != "description":
                self._reading.left_out[f"TensorBoard {point.kind}"] += 1
        if scalars:
            yield Metrics(event.time_ns, event.step, scalars)

    def _media(self, event: Event, point: Point) -> Iterator[Record]:
        scratch = self._reading.scratch
        if scratch is None:
            self._reading.left_out["TensorBoard images and audio (no folder for files)"] += 1
            return
        scratch.mkdir(exist_ok=True)
        for content in point.value:
            suffix, media_type = _media_type(content)
            self._files += 1
            path = scratch / f"{self._label}-{self._files:06d}.{suffix}"
            path.write_bytes(content)
            yield Artifact(event.time_ns, f"{point.tag}/{event.step}.{suffix}", str(path), event.step, media_type)


def _media_type(content: bytes) -> tuple[str, str]:
    for magic, found in _IMAGE_SUFFIX.items():
        if content.startswith(magic):
            return found
    return ("wav", "audio/wav") if content.startswith(b"RIFF") else ("bin", "application/octet-stream")


@dataclass(frozen=True, slots=True)
class _Singles:
    """Events of one scalar each, decoded in lockstep. `single` says which events these are; all arrays are [N]."""

    single: npt.NDArray[np.bool_]
    time_ns: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    tag_starts: npt.NDArray[np.int64]
    tag_ends: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


def _decode_single(data: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Singles:
    lanes = Lanes(data, starts, ends)
    lanes.expect(0x09)  # Event.wall_time
    time_ns = nanoseconds(lanes.fixed("<f8"))
    steps = lanes.optional_varint(0x10).astype(np.int64)  # Event.step
    for key in (0x2A, 0x0A):  # Event.summary, then its only Summary.value
        lanes.expect(key)
        _, end = lanes.span()
        lanes.keep(end == lanes.ends)
    lanes.expect(0x0A)  # Value.tag
    tag_starts, tag_ends = lanes.span()
    lanes.jump(tag_ends)
    lanes.expect(0x15)  # Value.simple_value
    values = lanes.fixed("<f4")
    return _Singles(lanes.done(), time_ns, steps, tag_starts, tag_ends, values)


def nanoseconds(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Seconds since the epoch as int64 nanoseconds; 0 where that is no time at all."""
    with np.errstate(invalid="ignore", over="ignore"):
        ns = seconds * 1e9
        return np.where(np.abs(ns) < _NS_LIMIT, np.rint(ns), 0).astype(np.int64)
