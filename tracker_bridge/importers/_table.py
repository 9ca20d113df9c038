"""CSV and JSON-lines files to records: a file is a run, or every such file below a folder is one.

Rows are wide (a step and one column for each series) or long (a series' name, a step, a value); which one is told by
the names of the columns. JSON lines may also be those of `tracker-bridge export` and of the `jsonl` backend, which
carry everything that a run has.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from tracker_bridge.importers._files import allowed_file, regular
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, fingerprint_of
from tracker_bridge.importers._plain import NotJsonError, as_step, clean, parse_json, plain
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

_STEP = ("step", "_step", "global_step", "iteration", "iter", "epoch")
_TIME = ("time_ns", "timestamp", "_timestamp", "wall_time", "time", "datetime", "date")
_NAME = ("name", "metric", "series", "key", "tag", "attribute_path")
_VALUE = ("value", "metric_value", "float_value")
_RUN = ("run", "run_id", "run_name", "run_uuid")
_LARGEST_LINE = 64 << 20
_LARGEST_CELL = 16 << 20
_SUFFIXES = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}
_DELIMITERS = ",;\t|"
_STATUSES = frozenset({"finished", "failed", "killed", "crashed"})


def discover(kind: str, path: str) -> Iterator[ForeignRun]:
    """A run for each file."""
    root = Path(path)
    if root.is_file():
        files = [root]
    elif root.is_dir():
        found = (Path(place, name) for place, _, names in os.walk(root) for name in names)
        files = sorted(file for file in found if file.suffix.lower() in _SUFFIXES[kind])
    else:
        raise FileNotFoundError(f"there is no file or directory {path}")
    base = root if root.is_dir() else root.parent
    for file in files:
        inside = file.relative_to(base).with_suffix("").as_posix()
        yield ForeignRun(
            kind=kind,
            paths=(str(file),),
            # Nothing inside such a file says which run it is, so it is the file at this place.
            identity=(str(file.resolve()), inside),
            fingerprint=fingerprint_of([file]),
            root=str(base),
            name=inside,
        )


def read(run: ForeignRun, reading: Reading) -> Iterator[Record]:
    """The records of one file."""
    path = Path(run.paths[0])
    # A line without a time gets that of the file: the best that is known, and the same each time.
    reader = _Reader(run, reading, path.stat().st_mtime_ns)
    lines = _csv_rows(path, reading) if run.kind == "csv" else _json_rows(path, reading)
    held = reader.first(lines)
    yield RunStarted(reader.start_ns, run.run_id, 1, 0, "", reader.provenance())
    for number, row in held:
        yield from reader.row(path, number, row)
    for number, row in lines:
        yield from reader.row(path, number, row)
    yield RunFinished(reader.last_ns, reader.status)


class _Reader:
    """Turns rows (name -> cell) into records."""

    def __init__(self, run: ForeignRun, reading: Reading, default_ns: int) -> None:
        self._run = run
        self._reading = reading
        self._default_ns = default_ns
        self._rows = 0
        self._tags: dict[str, str | None] = {}
        self._about: dict[str, Any] = {}
        self.start_ns = default_ns
        self.last_ns = 0
        self.status = "finished"

    def first(self, lines: Iterator[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
        """The first rows, from which the run's own time is taken."""
        held: list[tuple[int, dict[str, Any]]] = []
        for number, row in lines:
            held.append((number, row))
            time_ns = self._time(row)
            if _is_head(row):
                self._about = {key: plain(value) for key, value in row.items() if value is not None}
            if time_ns is not None:
                self.start_ns = time_ns
                break
            if len(held) >= 16:
                break
        self.last_ns = self.start_ns
        return held

    def provenance(self) -> dict[str, Any]:
        source = os.path.abspath(self._run.source)
        provenance: dict[str, Any] = {"imported_from": {"kind": self._run.kind, "source": source}}
        if self._about:
            provenance["exported_run"] = self._about
        return provenance

    def row(self, path: Path, number: int, row: dict[str, Any]) -> Iterator[Record]:
        time_ns = self._time(row)
        time_ns = self._default_ns if time_ns is None else time_ns
        own = [key for key in _OWN_FORMS if key in row and not isinstance(row[key], (int, float))]
        try:
            if own and self._run.kind == "jsonl":
                found = _OWN_FORMS[own[0]](self, time_ns, row)
            elif _is_head(row):
                return
            else:
                found = self._table_row(time_ns, row)
        except _RowError as error:
            self._reading.on_damage(Damage(str(path), f"line {number}", str(error)))
            return
        self.last_ns = max(self.last_ns, time_ns)
        yield from found

    # --- tables

    def _table_row(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        keys = {_key(name): name for name in row}
        step = self._step(keys, row)
        self._rows += 1
        name_key, value_key = _first(_NAME, keys), _first(_VALUE, keys)
        if name_key is not None and value_key is not None:
            return self._cells(time_ns, step, {str(row[name_key]): row[value_key]})
        skip = {keys[key] for key in (*_STEP, *_TIME, *_RUN) if key in keys}
        return self._cells(time_ns, step, {name: cell for name, cell in row.items() if name not in skip})

    def _cells(self, time_ns: int, step: Step, cells: Mapping[str, Any]) -> list[Record]:
        scalars: dict[str, float] = {}
        out: list[Record] = []
        for name, cell in _flat(cells):
            value = _number(cell)
            if value is not None:
                scalars[clean(name)] = value
            elif isinstance(cell, str) and cell:
                out.append(Text(time_ns, clean(name), clean(cell), step))
            elif isinstance(cell, list):
                self._reading.left_out["lists"] += 1
        return [Metrics(time_ns, step, scalars), *out] if scalars else out

    def _step(self, keys: dict[str, str], row: dict[str, Any]) -> Step:
        column = _first(_STEP, keys)
        if column is None:
            return self._rows
        step = as_step(_number(row[column]))
        if step is None:
            raise _RowError(f"{column} is {str(row[column])[:40]!r}, which is no step")
        return step

    def _time(self, row: dict[str, Any]) -> int | None:
        keys = {_key(name): name for name in row}
        column = _first(_TIME, keys)
        return None if column is None else _time_ns(row[column], exact=_key(column) == "time_ns")

    # --- lines of our own

    def _metrics(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        values = {clean(name): _number(value) for name, value in _mapping(row, "metrics").items()}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise _RowError(f"{missing[0]!r} has no number")
        return [Metrics(time_ns, _own_step(row), {name: value for name, value in values.items() if value is not None})]

    def _params(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        return [Params(time_ns, plain(_mapping(row, "params")))]

    def _tags_line(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        now = {clean(tag): None if value is None else clean(str(value)) for tag, value in _mapping(row, "tags").items()}
        add = {tag: value for tag, value in now.items() if tag not in self._tags or self._tags[tag] != value}
        remove = tuple(tag for tag in self._tags if tag not in now)
        self._tags = now
        return [Tags(time_ns, add, remove)] if add or remove else []

    def _text(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        step = as_step(row.get("step"))
        texts = _mapping(row, "text").items()
        return [Text(time_ns, clean(name), clean(str(text)), step) for name, text in texts]

    def _histogram(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        out: list[Record] = []
        for name, shape in _mapping(row, "histogram").items():
            try:
                edges = np.asarray([_number(edge) for edge in shape["edges"]], dtype=np.float64)
                counts = np.asarray([_number(count) for count in shape["counts"]], dtype=np.float64)
            except (TypeError, KeyError, ValueError):
                raise _RowError(f"{name!r} is no histogram") from None
            if len(edges) != len(counts) + 1:
                raise _RowError(f"histogram {name!r} has not one edge more than counts")
            out.append(Histogram(time_ns, clean(name), _own_step(row), pack_values(edges), pack_values(counts)))
        return out

    def _artifact(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        out: list[Record] = []
        for name, source in _mapping(row, "artifact").items():
            base = Path(self._run.paths[0]).parent
            found = allowed_file(base / str(source), (self._run.root, *self._run.file_roots))
            if found is None:
                self._reading.left_out["files outside of the imported path, or gone"] += 1
                continue
            media_type = str(row.get("media_type") or "application/octet-stream")
            out.append(Artifact(time_ns, clean(name), str(found), as_step(row.get("step")), media_type))
        return out

    def _alert(self, time_ns: int, row: dict[str, Any]) -> list[Record]:
        alert = _mapping(row, "alert")
        text = f"{alert.get('title', '')}\n\n{alert.get('text', '')}".strip()
        return [Text(time_ns, clean(f"alerts/{alert.get('rule', '')}"), clean(text), as_step(row.get("step")))]

    def _status_line(self, _time_ns: int, row: dict[str, Any]) -> list[Record]:
        self.status = row["status"] if row["status"] in _STATUSES else self.status
        return []


_OWN_FORMS = {
    "metrics": _Reader._metrics,
    "params": _Reader._params,
    "tags": _Reader._tags_line,
    "text": _Reader._text,
    "histogram": _Reader._histogram,
    "artifact": _Reader._artifact,
    "alert": _Reader._alert,
    "status": _Reader._status_line,
}


class _RowError(Exception):
    """The row is not what its columns say."""


def _csv_rows(path: Path, reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(_LARGEST_CELL)
    with regular(path).open(newline="", encoding="utf-8-sig", errors="replace") as file:
        head = file.readline(_LARGEST_CELL)
        if not head.strip() or "\0" in head:
            raise ForeignFormatError(Damage(str(path), "line 1", "no names of columns"))
        delimiter = max(_DELIMITERS, key=head.count)
        names = next(csv.reader([head], delimiter=delimiter))
        keys = {_key(name) for name in names}
        if len(set(names)) != len(names):
            raise ForeignFormatError(Damage(str(path), "line 1", "two columns have one name"))
        if keys & set(_RUN):
            reason = f"a column {min(keys & set(_RUN))!r}: more than one run? Split the file by it, and leave it out"
            raise ForeignFormatError(Damage(str(path), "line 1", reason))
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        while True:
            number = rows.line_num + 2
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                reading.on_damage(Damage(str(path), f"line {number}", f"not CSV: {error}"))
                return
            if not cells:
                continue
            if len(cells) != len(names):
                reason = f"{len(cells)} cells in a table of {len(names)} columns"
                reading.on_damage(Damage(str(path), f"line {number}", reason))
                continue
            yield number, dict(zip(names, cells, strict=True))


def _json_rows(path: Path, reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    with regular(path).open("rb") as file:
        number = 0
        while line := file.readline(_LARGEST_LINE):
            number += 1
            if not line.strip():
                continue
            try:
                row = parse_json(line.decode("utf-8-sig", "replace"))
            except NotJsonError as error:
                if not line.endswith(b"\n") and len(line) < _LARGEST_LINE:
                    reading.left_out["last line of a file, cut off"] += 1
                    return
                reading.on_damage(Damage(str(path), f"line {number}", str(error)))
                if not line.endswith(b"\n"):
                    return
                continue
            if not isinstance(row, dict):
                reading.on_damage(Damage(str(path), f"line {number}", "not a JSON object"))
                continue
            yield number, row


def _is_head(row: dict[str, Any]) -> bool:
    """The line with which our own files begin (once for each opening)."""
    return "run_id" in row and "attempt" in row


def _mapping(row: dict[str, Any], key: str) -> dict[str, Any]:
    value = row[key]
    if not isinstance(value, dict):
        raise _RowError(f"{key} is no object")
    return value


def _own_step(row: dict[str, Any]) -> Step:
    step = as_step(row.get("step"))
    if step is None:
        raise _RowError("there is no step")
    return step


def _key(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _first(wanted: tuple[str, ...], keys: dict[str, str]) -> str | None:
    return next((keys[key] for key in wanted if key in keys), None)


def _flat(cells: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    stack = [("", cells)]
    while stack:
        prefix, node = stack.pop()
        for name, cell in node.items():
            if isinstance(cell, dict):
                stack.append((f"{prefix}{name}/", cell))
            else:
                yield f"{prefix}{name}", cell


def _number(cell: Any) -> float | int | None:
    """The cell as a number (also `nan`, `inf` and booleans), or None."""
    if isinstance(cell, (int, float)):
        try:
            return cell if not isinstance(cell, bool) and abs(cell) < 2**53 else float(cell)
        except OverflowError:
            return float("inf") if cell > 0 else float("-inf")
    if not isinstance(cell, str) or "_" in cell:
        return None
    text = cell.strip()
    try:
        return int(text) if text.lstrip("-").isdecimal() and len(text) < 17 else float(text)
    except ValueError:
        return {"true": 1, "false": 0}.get(text.lower())


def _time_ns(cell: Any, *, exact: bool) -> int | None:
    """A time as nanoseconds: numbers by their size (seconds, milliseconds, ...), text as ISO 8601."""
    number = _number(cell)
    if number is not None:
        if exact:
            value = cell if isinstance(cell, int) else cell if isinstance(cell, str) else number
            whole = int(value) if isinstance(value, int) or str(value).lstrip("-").isdecimal() else int(number)
            return whole if abs(whole) < 2**63 else None
        for limit, factor in ((1e11, 1_000_000_000), (1e14, 1_000_000), (1e17, 1000), (9e18, 1)):
            if abs(number) < limit:
                return round(number * factor)
        return None
    if not isinstance(cell, str):
        return None
    try:
        moment = datetime.fromisoformat(cell.strip().replace("Z", "+00:00"))
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    seconds = int(moment.replace(microsecond=0).timestamp())
    return seconds * 1_000_000_000 + moment.microsecond * 1000
