"""W&B's offline runs (`.wandb` files) to records, without its SDK.

A series that the script gave an own axis (`define_metric(..., step_metric=...)`) gets that axis' value as its step, as
W&B's charts show it; everything else has W&B's step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tracker_bridge.config import scrub
from tracker_bridge.importers._files import allowed_file, safe_name
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, fingerprint_of
from tracker_bridge.importers._own_wandb import OWN_NAMES, OWN_STATUS, names_of, text_of
from tracker_bridge.importers._plain import as_step, clean, plain, seconds_to_ns
from tracker_bridge.importers._wandb_log import payloads
from tracker_bridge.importers._wandb_wire import (
    ALERT,
    ARTIFACT,
    CONFIG,
    ENVIRONMENT,
    EXIT,
    FILES,
    HISTORY,
    METRIC,
    OUTPUT,
    OUTPUT_OLD,
    RUN,
    STATS,
    SUMMARY,
    RunInfo,
    artifact_files,
    exit_code,
    file_paths,
    is_hidden,
    items,
    record_of,
    run_info,
    started_at,
    step_of,
    text_fields,
)
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
    merge_params,
    pack_values,
)

_RUN_FILE = re.compile(r"run-(?P<id>.+)\.wandb\Z")
_STARTED = re.compile(r"run-(\d{8}_\d{6})-")
_HEAD_RECORDS = 12
_INTERRUPTED = 255
_OWN_KINDS = frozenset({"run_table", "wandb-history", "job", "code"})
_MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".json": "application/json", ".html": "text/html"}


def discover(kind: str, path: str) -> Iterator[ForeignRun]:
    """A run for each run id and project; the files of a run that was resumed belong together, oldest first."""
    root = Path(path)
    if root.is_file():
        files = [root]
    elif root.is_dir():
        files = sorted(
            Path(place, name) for place, _, names in os.walk(root) for name in names if name.endswith(".wandb")
        )
    else:
        raise FileNotFoundError(f"there is no file or directory {path}")
    groups: dict[tuple[str, str], list[Path]] = {}
    heads: dict[tuple[str, str], RunInfo] = {}
    for file in files:
        head = _head(file)
        match = _RUN_FILE.match(file.name)
        identity = (head.project, head.run_id or (match["id"] if match else file.stem))
        groups.setdefault(identity, []).append(file)
        heads[identity] = head
    for identity, members in groups.items():
        members.sort(key=_started)
        head = heads[identity]
        yield ForeignRun(
            kind=kind,
            paths=tuple(map(str, members)),
            identity=identity,
            fingerprint=fingerprint_of(members),
            root=str(root if root.is_dir() else root.parent),
            project="/".join(part for part in (head.entity, head.project) if part) or None,
            experiment=head.group or None,
            name=head.name or identity[-1],
            details={"started_ns": head.start_ns},
        )


def _head(file: Path) -> RunInfo:
    """The first run record; an empty one where it cannot be had (reading the run then says why)."""
    found = RunInfo()
    try:
        for payload in islice(payloads(file, Reading()), _HEAD_RECORDS):
            number, message = record_of(payload)
            if number == RUN and not found.run_id:
                found = run_info(message)
            elif number == ENVIRONMENT and found.run_id:
                # The run record has the time of `wandb.init`, which may be long after the script began to log.
                times = [time_ns for time_ns in (found.start_ns, started_at(message)) if time_ns]
                found.start_ns = min(times, default=0)
    except (ForeignFormatError, WireError, OSError):
        pass
    return found


def _started(file: Path) -> tuple[str, str]:
    match = _STARTED.search(file.parent.name)
    return (match[1] if match else "", str(file))


def read(run: ForeignRun, reading: Reading) -> Iterator[Record]:
    """The records of one run."""
    reader = _Reader(run, reading)
    for path in map(Path, run.paths):
        number = 0
        try:
            for number, payload in enumerate(payloads(path, reading), 1):
                try:
                    found = reader.record(path, payload)
                except WireError as error:
                    reading.on_damage(Damage(str(path), f"record {number}", f"not a W&B record: {error}"))
                    continue
                yield from found
        except ForeignFormatError as error:
            reading.on_damage(error.damage)
            continue
        if number == 0:
            reason = "holds no record: its writer was killed before it first wrote to disk"
            reading.on_damage(Damage(str(path), "", reason))
    yield from reader.end()


class _Reader:
    """Turns W&B records into ours; holds the run's state so far."""

    def __init__(self, run: ForeignRun, reading: Reading) -> None:
        self._run = run
        self._reading = reading
        self._started = False
        self._last_ns = 0
        self._last_step = 0
        self._params: dict[str, Any] = {}
        self._tags: list[str] = []
        self._notes = ""
        self._summary: dict[tuple[str, ...], Any] = {}
        self._series: set[str] = set()
        self._axes: dict[str, str] = {}
        self._axis_globs: list[tuple[str, str]] = []
        self._used_axes: set[str] = set()
        self._axis_of: dict[str, str | None] = {}
        self._hidden: set[str] = set()
        self._names: dict[str, str] = {}
        self._status = "crashed"
        self._taken: set[str] = set()

    def record(self, path: Path, payload: bytes) -> list[Record]:
        """The records that one W&B record becomes. Raises `WireError`."""
        number, message = record_of(payload)
        out: list[Record] = []
        if number == RUN:
            out += self._run_record(run_info(message))
        elif number and not self._started:
            out.append(self._start(RunInfo()))
        if number == HISTORY:
            out += self._history(path, message)
        elif number == SUMMARY:
            self._summary.update(items(message))
        elif number == CONFIG:
            out += self._config(list(items(message)))
        elif number == FILES:
            for name in file_paths(message):
                if not name.startswith("media/"):
                    out += self._artifact(path, name, name, None)
        elif number == ARTIFACT:
            out += self._logged_artifact(message)
        elif number == METRIC:
            name, glob, axis = text_fields(message, 1, 2, 4)
            self._define(name, glob, axis)
            if is_hidden(message):
                self._hidden.add(name)
        elif number == ALERT:
            title, text = text_fields(message, 1, 2)
            out.append(Text(self._last_ns, f"alerts/{title}", text, self._last_step))
        elif number == EXIT:
            code = exit_code(message)
            self._status = "finished" if code == 0 else "killed" if code == _INTERRUPTED else "failed"
        elif number == STATS:
            self._reading.left_out["system metrics"] += 1
        elif number in (OUTPUT, OUTPUT_OLD):
            self._reading.left_out["console output"] += 1
        return out

    def end(self) -> Iterator[Record]:
        if not self._started:
            yield self._start(RunInfo())
        extra: dict[str, Any] = {}
        ended = self._summary.pop((OWN_STATUS,), None)
        for path, value in self._summary.items():
            shown = ".".join(path)
            if (
                not shown.startswith("_")
                and path[0] not in self._hidden
                and shown not in self._series
                and path[0] not in self._series
            ):
                extra[clean(shown)] = plain(value)
        if extra:
            yield Params(self._last_ns, {"summary": extra})
        yield RunFinished(self._last_ns, ended if isinstance(ended, str) and ended else self._status)

    def _start(self, info: RunInfo) -> Record:
        self._started = True
        start_ns = int(self._run.details.get("started_ns") or info.start_ns)
        self._last_ns = start_ns
        provenance: dict[str, Any] = {
            "imported_from": {"kind": self._run.kind, "source": os.path.abspath(self._run.source)}
        }
        known = {"git_commit": info.commit, "sweep": info.sweep, "job_type": info.job_type, "forked_from": info.branch}
        provenance.update({key: value for key, value in known.items() if value})
        return RunStarted(start_ns, self._run.run_id, 1, 0, info.host, provenance)

    def _run_record(self, info: RunInfo) -> list[Record]:
        out: list[Record] = [] if self._started else [self._start(info)]
        out += self._config(info.config)
        if info.tags != self._tags:
            add: dict[str, str | None] = {tag: None for tag in info.tags if tag not in self._tags}
            remove = tuple(tag for tag in self._tags if tag not in info.tags)
            if add or remove:
                out.append(Tags(self._last_ns, add, remove))
            self._tags = info.tags
        if info.notes != self._notes:
            self._notes = info.notes
            out.append(Text(self._last_ns, "notes", info.notes))
        return out

    def _config(self, changes: list[tuple[tuple[str, ...], Any]]) -> list[Record]:
        update: dict[str, Any] = {}
        for path, value in changes:
            if path[0] == "_wandb":
                continue
            if path[0] == OWN_NAMES:
                self._names.update(names_of(path, value))
                continue
            place = update
            for part in path[:-1]:
                inner = place.get(clean(part))
                if not isinstance(inner, dict):
                    inner = place[clean(part)] = {}
                place = inner
            place[clean(path[-1])] = _scrubbed(plain(value))
        fresh = {key: value for key, value in update.items() if key not in self._params or self._params[key] != value}
        if not fresh:
            return []
        merge_params(self._params, fresh)
        return [Params(self._last_ns, fresh)]

    def _define(self, name: str, glob: str, axis: str) -> None:
        axis = axis.replace("\\.", ".")
        if not axis:
            return
        self._used_axes.add(axis)
        if glob:
            self._axis_globs.append((glob.removesuffix("*"), axis))
        elif name:
            self._axes[name.replace("\\.", ".")] = axis
        self._axis_of.clear()

    def _axis(self, name: str) -> str | None:
        """The series that is this one's x-axis, if the script defined one."""
        known = self._axis_of.get(name, "")
        if known != "":
            return known
        found = self._axes.get(name)
        if found is None:
            found = next((axis for prefix, axis in self._axis_globs if name.startswith(prefix)), None)
        found = None if found == name else found
        self._axis_of[name] = found
        return found

    def _history(self, path: Path, message: bytes) -> list[Record]:
        step = step_of(message)
        time_ns: int | None = None
        scalars: list[tuple[str, float]] = []
        rest: dict[str, Any] = {}
        for keys, value in items(message):
            name = keys[0]
            if name == "_step":
                step = int(value) if step is None and isinstance(value, int) else step
            elif name == "_timestamp":
                time_ns = seconds_to_ns(value)
            elif name == "_runtime" or name == "_wandb":
                continue
            elif len(keys) == 1 and isinstance(value, (int, float)):
                scalars.append((name, float(value)))
            else:
                _insert(rest, keys, value)
        self._last_step = step if step is not None else self._last_step + 1
        self._last_ns = time_ns if time_ns is not None else self._last_ns
        others: list[tuple[str, Any]] = []
        for name, value in _leaves(rest, ""):
            if isinstance(value, (bool, int, float)):
                scalars.append((name, float(value)))
            else:
                others.append((name, value))
        axes = {name: as_step(value) for name, value in scalars if name in self._used_axes}
        out = self._scalars(scalars, axes)
        for name, value in others:
            self._series.add(name)
            out += self._other(path, name, value, self._step(name, axes))
        return out

    def _step(self, name: str, axes: dict[str, Step | None]) -> Step:
        """The value of the series' own axis in this row if there is one, else W&B's step."""
        axis = self._axis(name)
        own = axes.get(axis) if axis is not None else None
        return self._last_step if own is None else own

    def _scalars(self, scalars: list[tuple[str, float]], axes: dict[str, Step | None]) -> list[Record]:
        rows: dict[Step, dict[str, float]] = {}
        for name, value in scalars:
            self._series.add(name)
            if name in self._hidden and name in self._used_axes:
                continue  # An axis that the script hid is no series of its own: it is the others' step.
            rows.setdefault(self._step(name, axes), {})[clean(self._names.get(name, name))] = value
        return [Metrics(self._last_ns, step, row) for step, row in rows.items()]

    def _other(self, path: Path, name: str, value: Any, step: Step) -> list[Record]:
        if value is None:
            self._reading.left_out["values that are null"] += 1
            return []
        if isinstance(value, str):
            return [Text(self._last_ns, clean(name), clean(value), step)]
        if isinstance(value, list):
            return [Text(self._last_ns, clean(name), str(plain(value)), step)]
        if value.get("_type") == "histogram":
            return self._histogram(name, value, step)
        sources = value.get("filenames") if isinstance(value.get("filenames"), list) else [value.get("path")]
        sources = [source for source in sources if isinstance(source, str)]
        if not sources:
            self._reading.left_out[f"W&B values of type {str(value.get('_type'))[:40]}"] += 1
        text = text_of(allowed_file(path.parent / "files" / sources[0], (path.parent,))) if sources else None
        name = self._names.get(name, name)
        if text is not None:
            return [Text(self._last_ns, clean(name), clean(text), step)]
        out = []
        for index, source in enumerate(sources):
            shown = name if len(sources) == 1 else f"{name}/{index}"
            out += self._artifact(path, source, shown, step)
        return out

    def _histogram(self, name: str, value: dict[str, Any], step: Step) -> list[Record]:
        counts, edges, packed = value.get("values"), value.get("bins"), value.get("packedBins")
        try:
            bins = np.asarray(counts, dtype=np.float64).reshape(-1)
            if edges is None and isinstance(packed, dict):
                edges = float(packed["min"]) + np.arange(len(bins) + 1) * float(packed["size"])
            limits = np.asarray(edges, dtype=np.float64).reshape(-1)
        except (ValueError, TypeError, KeyError, OverflowError):
            limits, bins = np.zeros(0), np.zeros(0)
        if len(limits) != len(bins) + 1:
            self._reading.left_out["histograms that are none"] += 1
            return []
        name = self._names.get(name, name)
        return [Histogram(self._last_ns, clean(name), step, pack_values(limits), pack_values(bins))]

    def _artifact(self, path: Path, relative: str, name: str, step: Step | None) -> list[Record]:
        if step is None and relative in self._taken:
            return []
        self._taken.add(relative)
        if Path(relative).is_absolute() or ".." in Path(relative).parts:
            self._reading.left_out["files outside of the imported path"] += 1
            return []
        return self._file(path.parent / "files" / relative, name, step, path)

    def _file(self, source: Path, name: str, step: Step | None, near: Path) -> list[Record]:
        found = allowed_file(source, (near.parent, self._run.root, *self._run.file_roots))
        if found is None:
            reason = "files outside of the imported path" if source.is_file() else "files that no longer exist"
            self._reading.left_out[reason] += 1
            return []
        media_type = _MEDIA_TYPES.get(found.suffix.lower(), "application/octet-stream")
        return [Artifact(self._last_ns, safe_name(clean(name)), str(found), step, media_type)]

    def _logged_artifact(self, message: bytes) -> list[Record]:
        kind, artifact, contents = artifact_files(message)
        out: list[Record] = []
        if kind not in _OWN_KINDS:
            for name, local in contents:
                source = Path(local) if local else Path(self._run.paths[-1]).parent / "missing"
                out += self._file(source, f"{artifact}/{name}", None, Path(self._run.paths[-1]))
        return out


def _insert(tree: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        inner = tree.get(key)
        if not isinstance(inner, dict):
            inner = tree[key] = {}
        tree = inner
    tree[keys[-1]] = value


def _leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Values by dotted name; a mapping with a `_type` is one value (media)."""
    stack = [(prefix, tree)]
    while stack:
        start, node = stack.pop()
        for key, value in node.items():
            name = f"{start}{key}"
            if isinstance(value, dict) and "_type" not in value:
                stack.append((f"{name}.", value))
            else:
                yield name, value


def _scrubbed(value: Any) -> Any:
    return scrub(value, ()) if isinstance(value, str) else value
