"""Parquet files of Neptune's own exporter to records. Needs pyarrow; nothing of Neptune.

The exporter writes long rows (attribute, step, value) in parts of a run, in no order; part 0 comes last and so says
that the export was finished. A point that was NaN is stored as null.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_bridge.config import scrub
from tracker_bridge.importers._files import allowed_file, regular
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, fingerprint_of
from tracker_bridge.importers._optional import needed
from tracker_bridge.importers._plain import plain
from tracker_bridge.importers._sorter import PointSorter
from tracker_bridge.records import (
    Artifact,
    Histogram,
    Params,
    Record,
    RunFinished,
    RunStarted,
    Step,
    Tags,
    Text,
    pack_values,
)

_PART = re.compile(r"(?P<run>.+)_part_(?P<number>\d+)\.parquet\Z")
_COLUMNS = (
    "project_id", "run_id", "attribute_path", "attribute_type", "step", "timestamp", "int_value", "float_value",
    "string_value", "bool_value", "datetime_value", "string_set_value", "file_value", "histogram_value",
)  # fmt: skip
_VALUE_OF = {
    "float": "float_value",
    "int": "int_value",
    "string": "string_value",
    "bool": "bool_value",
    "datetime": "datetime_value",
    "string_set": "string_set_value",
}
_BATCH = 1 << 16
_WINDOW = 4096
_MICRO = 1_000_000
_ROWS_PER_BYTE = 100
_EXPANSION = 1000
_INSTALL = "tracker-bridge[parquet]"


def discover(kind: str, path: str) -> Iterator[ForeignRun]:
    """A run for each set of parts with one name in one folder."""
    needed("pyarrow.parquet", _INSTALL)
    root = Path(path)
    if root.is_file():
        match = _PART.match(root.name)
        if match is None:
            raise ForeignFormatError(Damage(path, "", "not a part of an export (its name lacks _part_<n>.parquet)"))
        folders = [
            (root.parent, [name for name in os.listdir(root.parent) if name.startswith(match["run"] + "_part_")])
        ]
    elif root.is_dir():
        folders = sorted((Path(place), names) for place, _, names in os.walk(root))
    else:
        raise FileNotFoundError(f"there is no file or directory {path}")
    base = root if root.is_dir() else root.parent
    for folder, names in folders:
        runs: dict[str, list[tuple[int, Path]]] = {}
        for name in names:
            match = _PART.match(name)
            if match is not None:
                runs.setdefault(match["run"], []).append((int(match["number"]), folder / name))
        for label, parts in sorted(runs.items()):
            yield _found(kind, label, [part for _, part in sorted(parts)], base)


def _found(kind: str, label: str, parts: list[Path], root: Path) -> ForeignRun:
    project, run = _identify(parts[0])
    folder = parts[0].parent
    bases = [root / "files", root.parent / "files", folder.parent / "files", folder.parent.parent / "files"]
    return ForeignRun(
        kind=kind,
        paths=tuple(map(str, parts)),
        identity=(project or folder.name, run or label),
        fingerprint=fingerprint_of(parts),
        root=str(root),
        project=project,
        name=run or label,
        file_roots=tuple(dict.fromkeys(str(base) for base in bases if base.is_dir())),
        details={"folder": folder.name, "complete": parts[0].name == f"{label}_part_0.parquet"},
    )


def _identify(part: Path) -> tuple[str | None, str | None]:
    """(project, run id) as the first row says; None where it cannot (reading the run then says why)."""
    try:
        with _parquet(part) as file:
            for batch in file.iter_batches(batch_size=1, columns=["project_id", "run_id"]):
                row = batch.to_pylist()[0]
                return (str(row["project_id"]) if row["project_id"] else None), (str(row["run_id"] or "") or None)
    except (ForeignFormatError, OSError, KeyError, IndexError):
        pass
    return None, None


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The open ParquetFile. Whatever pyarrow says against it is a `ForeignFormatError`."""
    parquet = needed("pyarrow.parquet", _INSTALL)
    arrow = needed("pyarrow", _INSTALL)
    try:
        with parquet.ParquetFile(regular(path), memory_map=True) as file:
            _check_sizes(path, file.metadata)
            yield file
    except (arrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ForeignFormatError(Damage(str(path), "", f"not a sound parquet file: {text}")) from error


def _check_sizes(path: Path, metadata: Any) -> None:
    size = path.stat().st_size
    if metadata.num_rows > _ROWS_PER_BYTE * size:
        raise ForeignFormatError(Damage(str(path), "", f"claims {metadata.num_rows} rows in {size} bytes"))
    unpacked = sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    if unpacked > _EXPANSION * size:
        raise ForeignFormatError(Damage(str(path), "", f"claims to unpack {size} bytes to {unpacked}"))


def read(run: ForeignRun, reading: Reading) -> Iterator[Record]:
    """The records of one run."""
    if not run.details.get("complete", True):
        reason = "part 0 is missing: the export was interrupted"
        reading.on_damage(Damage(run.paths[0], "", reason))
    with PointSorter() as sorter:
        reader = _Reader(run, reading, sorter)
        events = reader.parts()
        first = list(_window(events))
        yield reader.start()
        yield from reader.described()
        while first:
            yield from first
            first = list(_window(events))
        # Params that came after the first window of events.
        yield from reader.described()
        yield from sorter.rows()
        yield reader.finish()


def _window(records: Iterator[Record]) -> Iterator[Record]:
    held = []
    for record in records:
        held.append(record)
        if len(held) >= _WINDOW:
            break
    return iter(sorted(held, key=lambda record: record.time_ns))


class _Reader:
    """Sends scalars to the sorter, collects what describes the run, and gives out the rest."""

    def __init__(self, run: ForeignRun, reading: Reading, sorter: PointSorter) -> None:
        self._run = run
        self._reading = reading
        self._sorter = sorter
        self._params: dict[str, Any] = {}
        self._tags: dict[str, str | None] = {}
        self._system: dict[str, Any] = {}
        self._last_ns = 0
        self._created_ns = 0

    def start(self) -> Record:
        source = os.path.abspath(self._run.source)
        provenance: dict[str, Any] = {"imported_from": {"kind": self._run.kind, "source": source}}
        parent = self._system.get("sys/forking/parent")
        if parent:
            provenance["forked_from"] = {"run_id": parent, "step": self._system.get("sys/forking/step")}
        if self._system.get("sys/name"):
            provenance["experiment"] = self._system["sys/name"]
        return RunStarted(
            self._created_ns, self._run.run_id, 1, 0, str(self._system.get("sys/hostname", "")), provenance
        )

    def described(self) -> Iterator[Record]:
        """Params and tags that were met since the last call."""
        if self._params:
            yield Params(self._created_ns, self._params)
        if self._tags:
            yield Tags(self._created_ns, self._tags)
        self._params, self._tags = {}, {}

    def finish(self) -> Record:
        return RunFinished(
            max(self._last_ns, self._created_ns), "failed" if self._system.get("sys/failed") else "finished"
        )

    def parts(self) -> Iterator[Record]:
        """Everything with a step that is no scalar, as it comes."""
        for path in map(Path, self._run.paths):
            try:
                with _parquet(path) as file:
                    present = set(file.schema_arrow.names)
                    missing = {"attribute_path", "attribute_type"} - present
                    if missing:
                        reason = f"not an export of Neptune: it has no column {min(missing)}"
                        raise ForeignFormatError(Damage(str(path), "", reason))
                    columns = [name for name in _COLUMNS if name in present]
                    for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
                        yield from self._batch(path, batch)
            except ForeignFormatError as error:
                self._reading.on_damage(error.damage)

    def _batch(self, path: Path, batch: Any) -> Iterator[Record]:
        arrow, compute = needed("pyarrow", _INSTALL), needed("pyarrow.compute", _INSTALL)
        kinds = compute.fill_null(batch["attribute_type"].cast(arrow.string()), "")
        series = compute.equal(kinds, "float_series")
        self._scalars(batch.filter(series), arrow, compute)
        for row in batch.filter(compute.invert(series)).to_pylist():
            try:
                yield from self._row(row)
            except (ValueError, TypeError, KeyError) as error:
                where = f"attribute {str(row.get('attribute_path'))[:80]!r}"
                self._reading.on_damage(Damage(str(path), where, f"a row does not fit its type: {error}"))

    def _scalars(self, batch: Any, arrow: Any, compute: Any) -> None:
        if not batch.num_rows:
            return
        if "step" not in batch.schema.names:
            self._reading.left_out["points without a step"] += batch.num_rows
            return
        stepped = compute.is_valid(batch["step"])
        if not compute.all(stepped).as_py():
            self._reading.left_out["points without a step"] += batch.num_rows - compute.sum(stepped).as_py()
            batch = batch.filter(stepped)
        names = compute.fill_null(batch["attribute_path"].cast(arrow.string()), "").dictionary_encode()
        ids = np.array([self._sorter.name_id(name) for name in names.dictionary.to_pylist()], dtype=np.int64)
        codes = names.indices.to_numpy(zero_copy_only=False)
        # NaN was stored as null, because the exporter went through pandas.
        values = compute.fill_null(batch["float_value"].cast(arrow.float64()), np.nan).to_numpy(zero_copy_only=False)
        micro = _micros(batch["step"], arrow)
        times = _times(batch, arrow, compute)
        if len(times):
            self._last_ns = max(self._last_ns, int(times.max()))
            self._sorter.add(times, micro // _MICRO, micro % _MICRO, ids[codes], values)

    def _row(self, row: dict[str, Any]) -> Iterator[Record]:
        kind, name = str(row["attribute_type"]), str(row["attribute_path"])
        column = _VALUE_OF.get(kind)
        if column is not None:
            self._describe(kind, name, row.get(column))
            return
        time_ns = _ns(row.get("timestamp")) or self._created_ns
        self._last_ns = max(self._last_ns, time_ns)
        step = _step(row.get("step"))
        if kind == "file":
            yield from self._file(time_ns, name, None, row.get("file_value"))
        elif kind not in ("string_series", "histogram_series", "file_series"):
            self._reading.left_out[f"Neptune attributes of type {kind[:40]}"] += 1
        elif step is None:
            self._reading.left_out["points without a step"] += 1
        elif kind == "string_series":
            if row.get("string_value") is not None:
                yield Text(time_ns, name, row["string_value"], step)
        elif kind == "histogram_series":
            yield from self._histogram(time_ns, name, step, row.get("histogram_value"))
        else:
            yield from self._file(time_ns, name, step, row.get("file_value"))

    def _describe(self, kind: str, name: str, value: Any) -> None:
        if value is None:
            return  # The exporter's way of saying that this run lacks an attribute that another one has.
        if isinstance(value, datetime):
            if name == "sys/creation_time":
                self._created_ns = _ns(value)
            value = value.isoformat()
        if name.startswith("sys/"):
            self._system[name] = value
        if name in ("sys/tags", "sys/group_tags") and kind == "string_set":
            self._tags.update(dict.fromkeys(map(str, value)))
            return
        self._params[name] = scrub(value, ()) if isinstance(value, str) else plain(value)

    def _histogram(self, time_ns: int, name: str, step: Step, value: Any) -> Iterator[Record]:
        if not isinstance(value, dict):
            return
        edges = np.asarray(value.get("edges") or [], dtype=np.float64)
        counts = np.asarray(value.get("values") or [], dtype=np.float64)
        if len(edges) != len(counts) + 1:
            raise ValueError("a histogram has not one edge more than values")
        if "dens" in str(value.get("type", "")).lower():
            counts = counts * np.diff(edges)
        yield Histogram(time_ns, name, step, pack_values(edges), pack_values(counts))

    def _file(self, time_ns: int, name: str, step: Step | None, value: Any) -> Iterator[Record]:
        path = value.get("path") if isinstance(value, dict) else None
        if not path:
            return
        bases = [Path(base) for base in (*self._run.file_roots, self._run.root)]
        candidates = [
            base / more / str(path) for base in bases for more in ("", str(self._run.details.get("folder", "")))
        ]
        found = next(filter(None, (allowed_file(candidate, bases) for candidate in candidates)), None)
        if found is None:
            self._reading.left_out["files that are not beside the export"] += 1
            return
        yield Artifact(time_ns, name, str(found), step)


def _micros(steps: Any, arrow: Any) -> npt.NDArray[np.int64]:
    """Steps in millionths, int64 [N], exactly: the low words of the decimals."""
    fixed = steps.cast(arrow.decimal128(18, 6))
    words = np.frombuffer(fixed.buffers()[1], dtype="<i8")
    low: npt.NDArray[np.int64] = words[2 * fixed.offset : 2 * (fixed.offset + len(fixed)) : 2].copy()
    return low


def _times(batch: Any, arrow: Any, compute: Any) -> npt.NDArray[np.int64]:
    if "timestamp" not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=np.int64)
    milliseconds = compute.fill_null(batch["timestamp"].cast(arrow.timestamp("ms")).cast(arrow.int64()), 0)
    times: npt.NDArray[np.int64] = milliseconds.to_numpy(zero_copy_only=False).astype(np.int64) * 1_000_000
    return times


def _ns(value: Any) -> int:
    return round(value.timestamp() * 1000) * 1_000_000 if isinstance(value, datetime) else 0


def _step(value: Any) -> Step | None:
    if value is None:
        return None
    micro = int(value * _MICRO)
    return micro // _MICRO if micro % _MICRO == 0 else micro / _MICRO
