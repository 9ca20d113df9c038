"""Neptune's operations (`neptune.ingest.v1`), as far as a run's own data goes. Field numbers were read off the wire.

UpdateRunSnapshot {1 step, 2 timestamp, 4 assign, 5 modify_sets, 8 append, 10 preview}; maps are repeated entries
{1 key, 2 value}. Values: {1 float64, 3 int64, 5 bool, 6 string, 8 timestamp, 12 string_set, 13 file_ref,
14 histogram}. Run {2 fork_point, 3 creation_time, 4 family, 5 experiment_id}.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from tracker_bridge.importers._wire import (
    Value,
    WireError,
    as_bytes,
    as_double,
    as_doubles,
    as_int,
    as_text,
    as_varints,
    fields,
    last,
)
from tracker_bridge.records import Step

_MICRO = 1_000_000
_MAX_SECONDS = 9_223_372_035  # the last second whose nanoseconds fit into int64
_ADD = 1

_double_at = struct.Struct("<d").unpack_from


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file by its place in Neptune's storage."""

    path: str
    media_type: str


@dataclass(frozen=True, slots=True)
class Bins:
    """`edges` float64 [B + 1], `counts` float64 [B]."""

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]


Plain = Union[float, int, bool, str, list[str], datetime, FileRef, Bins]


@dataclass(slots=True)
class Update:
    """An UpdateRunSnapshot. `tags`: (attribute path, tag, added or removed)."""

    time_ns: int | None = None
    step: Step | None = None
    assign: dict[str, Plain] = field(default_factory=dict)
    append: dict[str, Plain] = field(default_factory=dict)
    tags: list[tuple[str, str, bool]] = field(default_factory=list)
    preview: bool = False


@dataclass(slots=True)
class Create:
    """A Run message."""

    time_ns: int | None = None
    experiment: str | None = None
    fork: dict[str, Any] | None = None


def parse_update(data: bytes) -> Update:
    """The update in `data`. Raises `WireError`."""
    update = Update()
    for number, value in fields(data):
        if number == 1:
            update.step = _step(as_bytes(value))
        elif number == 2:
            update.time_ns = _timestamp(as_bytes(value))
        elif number == 4:
            key, plain = _entry(value)
            update.assign[key] = plain
        elif number == 8:
            key, plain = _entry(value)
            update.append[key] = plain
        elif number == 5:
            update.tags += _modify_set(as_bytes(value))
        elif number == 10:
            update.preview = bool(last(as_bytes(value), 1))
    return update


def parse_create(data: bytes) -> Create:
    """The creation in `data`. Raises `WireError`."""
    create = Create()
    for number, value in fields(data):
        if number == 2:
            create.fork = _fork(as_bytes(value))
        elif number == 3:
            create.time_ns = _timestamp(as_bytes(value))
        elif number == 5:
            create.experiment = as_text(value)
    return create


def quick_appends(data: bytes, at: int, end: int, name: Callable[[bytes], str]) -> dict[str, float] | None:
    """The float64 values of `data[at:end]`, if nothing but appends of such stands there; else None."""
    row: dict[str, float] = {}
    try:
        while at < end:
            # append { 0x42 size { 0x0a length key, 0x12 9 { 0x09 float64 } } }
            size = data[at + 1]
            if data[at] != 0x42:
                return None
            at += 2
            if size > 0x7F:
                if data[at] > 0x7F:
                    return None
                size = size & 0x7F | data[at] << 7
                at += 1
            stop = at + size
            length = data[at + 1]
            if data[at] != 0x0A:
                return None
            at += 2
            if length > 0x7F:
                if data[at] > 0x7F:
                    return None
                length = length & 0x7F | data[at] << 7
                at += 1
            value = at + length
            if value + 11 != stop or stop > end or data[value : value + 3] != b"\x12\x09\x09":
                return None
            row[name(data[at:value])] = _double_at(data, value + 3)[0]
            at = stop
    except IndexError:
        return None
    return row


def _entry(value: Value) -> tuple[str, Plain]:
    key, content = "", b""
    for number, part in fields(as_bytes(value)):
        if number == 1:
            key = as_bytes(part).decode("utf-8", "replace")
        elif number == 2:
            content = as_bytes(part)
    return key, _plain(content)


def _plain(data: bytes) -> Plain:
    found: Plain | None = None
    for number, value in fields(data):
        if number == 1:
            found = as_double(value)
        elif number == 3:
            found = as_int(value)
        elif number == 5:
            found = bool(as_int(value))
        elif number == 6:
            found = as_text(value)
        elif number == 8:
            found = _datetime(_timestamp(as_bytes(value)))
        elif number == 12:
            found = [as_text(part) for inner, part in fields(as_bytes(value)) if inner == 1]
        elif number == 13:
            found = _file_ref(as_bytes(value))
        elif number == 14:
            found = _bins(as_bytes(value))
        else:
            raise WireError(f"a value of the unknown type {number}")
    if found is None:
        raise WireError("a value without content")
    return found


def _datetime(time_ns: int) -> datetime:
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000, timezone.utc).replace(
            microsecond=time_ns % 1_000_000_000 // 1000
        )
    except (OverflowError, OSError, ValueError):
        raise WireError("a time outside of the calendar") from None


def _file_ref(data: bytes) -> FileRef:
    path, media_type = "", ""
    for number, value in fields(data):
        if number == 1:
            path = as_text(value)
        elif number == 3:
            media_type = as_text(value)
    return FileRef(path, media_type or "application/octet-stream")


def _bins(data: bytes) -> Bins:
    edges: list[Value] = []
    counts: npt.NDArray[np.float64] = np.zeros(0)
    densities: npt.NDArray[np.float64] | None = None
    for number, value in fields(data):
        if number == 1:
            edges.append(value)
        elif number == 4:
            counts = np.array(as_varints([part for n, part in fields(as_bytes(value)) if n == 1]), dtype=np.float64)
        elif number == 5:
            densities = as_doubles([part for n, part in fields(as_bytes(value)) if n == 1])
    limits = as_doubles(edges)
    if densities is not None and len(densities) + 1 == len(limits):
        # A density times its bin's width is the bin's share of all values: what counts would be, up to their sum.
        counts = densities * np.diff(limits)
    if len(limits) != len(counts) + 1:
        raise WireError("a histogram has not one edge more than bins")
    return Bins(limits, counts)


def _modify_set(entry: bytes) -> list[tuple[str, str, bool]]:
    path = ""
    changes: list[tuple[str, bool]] = []
    for number, value in fields(entry):
        if number == 1:
            path = as_text(value)
        elif number == 2:
            strings = last(as_bytes(value), 1)
            for inner, change in fields(as_bytes(strings)) if strings is not None else ():
                if inner == 1:
                    changes.append(_set_change(as_bytes(change)))
    return [(path, tag, added) for tag, added in changes]


def _set_change(entry: bytes) -> tuple[str, bool]:
    tag, operation = "", 0
    for number, value in fields(entry):
        if number == 1:
            tag = as_text(value)
        elif number == 2:
            operation = as_int(value)
    return tag, operation == _ADD


def _fork(data: bytes) -> dict[str, Any]:
    fork: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 1:
            fork["project"] = as_text(value)
        elif number == 2:
            fork["run_id"] = as_text(value)
        elif number == 4:
            fork["step"] = _step(as_bytes(value))
    return fork


def _step(data: bytes) -> Step:
    whole = micro = 0
    for number, value in fields(data):
        if number == 1:
            whole = as_int(value)
        elif number == 2:
            micro = as_int(value)
    return exact_step(whole, micro)


def exact_step(whole: int, micro: int) -> Step:
    """A step of whole plus millionths, rounded once (so 1.7 is 1.7)."""
    return whole if micro == 0 else (whole * _MICRO + micro) / _MICRO


def _timestamp(data: bytes) -> int:
    seconds = nanos = 0
    for number, value in fields(data):
        if number == 1:
            seconds = as_int(value)
        elif number == 2:
            nanos = as_int(value)
    if abs(seconds) > _MAX_SECONDS or not 0 <= nanos < 1_000_000_000:
        raise WireError("a time outside of int64 nanoseconds")
    return seconds * 1_000_000_000 + nanos
