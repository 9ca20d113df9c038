"""One TensorBoard event, field by field: the general road, for everything that is not a plain scalar.

Field numbers are those of tensorboard/compat/proto/{event,summary,tensor}.proto and
tensorboard/plugins/hparams/plugin_data.proto.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tracker_bridge.importers._wire import (
    Value,
    WireError,
    as_bytes,
    as_double,
    as_doubles,
    as_float,
    as_int,
    as_text,
    as_varints,
    fields,
    last,
)

_NS_LIMIT = 2.0**62
_SESSION_START = 1
_STRING = 7
_NUMERIC: dict[int, str] = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?",
    17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
_VARINT_FIELDS = frozenset({7, 10, 11, 16, 17})
_MEDIA_PLUGINS = frozenset({"images", "audio"})


@dataclass(frozen=True, slots=True)
class Event:
    """What an event says besides its summary, which is still encoded."""

    time_ns: int
    step: int
    summary: bytes | None
    session_start: bool
    file_version: str | None


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a summary, decoded. The type of `value` follows from `kind`.

    `scalar`: float; `text`: list of str; `histogram`: (edges [B + 1], counts [B]); `params`: dict; `status`: int (the
    hparams plugin's); `file`: list of bytes; `description`: nothing; any other kind names what cannot be carried.
    """

    tag: str
    kind: str
    value: Any


def parse_event(data: bytes) -> Event:
    """The event in `data`. Raises `WireError`."""
    wall, step = 0.0, 0
    summary: bytes | None = None
    version: str | None = None
    start = False
    for number, value in fields(data):
        if number == 1:
            wall = as_double(value)
        elif number == 2:
            step = as_int(value)
        elif number == 3:
            version = as_text(value)
        elif number == 5:
            summary = as_bytes(value)
        elif number == 7:
            start = last(as_bytes(value), 1) == _SESSION_START
    ns = wall * 1e9
    return Event(round(ns) if math.isfinite(ns) and abs(ns) < _NS_LIMIT else 0, step, summary, start, version)


def points_of(summary: bytes, plugins: dict[str, str]) -> Iterator[Point]:
    """The values of an encoded Summary. `plugins` (tag -> plugin) is kept up to date: metadata comes once per tag."""
    for number, value in fields(summary):
        if number == 1:
            yield _point(as_bytes(value), plugins)


def _point(data: bytes, plugins: dict[str, str]) -> Point:
    tag, content = "", b""
    body: tuple[int, Value] | None = None
    for number, value in fields(data):
        if number == 1:
            tag = as_bytes(value).decode("utf-8", "replace")
        elif number == 9:
            plugin, content = _plugin(as_bytes(value))
            plugins[tag] = plugin
        elif number != 7:
            body = number, value
    plugin = plugins.get(tag, "")
    if plugin == "hparams":
        return _hparams(tag, content)
    if body is None:
        return Point(tag, "value without content", None)
    kind, value = body
    if kind == 2:
        return Point(tag, "scalar", as_float(value))
    if kind == 5:
        return _classic_histogram(tag, as_bytes(value))
    if kind in (4, 6):
        encoded = last(as_bytes(value), 4)
        return Point(tag, "file", [] if encoded is None else [as_bytes(encoded)])
    if kind == 8:
        return _tensor_point(tag, plugin, as_bytes(value))
    return Point(tag, f"value of field {kind}", None)


def _plugin(metadata: bytes) -> tuple[str, bytes]:
    name, content = "", b""
    found = last(metadata, 1)
    for number, value in fields(as_bytes(found)) if found is not None else ():
        if number == 1:
            name = as_text(value)
        elif number == 2:
            content = as_bytes(value)
    return name, content


def _tensor_point(tag: str, plugin: str, data: bytes) -> Point:
    array, strings = _tensor(data)
    if plugin == "text" or (strings is not None and plugin not in _MEDIA_PLUGINS):
        return Point(tag, "text", [text.decode("utf-8", "replace") for text in strings or ()])
    if plugin in _MEDIA_PLUGINS:
        # Images carry width and height as their first two strings.
        skip = 2 if plugin == "images" else 0
        return Point(tag, "file", list(strings or ())[skip:])
    if array is None:
        return Point(tag, "tensor of an unknown type", None)
    if plugin == "histograms":
        if array.size == 0 or array.size % 3:
            return Point(tag, "empty histogram", None)
        rows = array.reshape(-1, 3)
        return Point(tag, "histogram", (np.append(rows[:, 0], rows[-1, 1]), rows[:, 2]))
    if array.size == 1:
        return Point(tag, "scalar", float(array.reshape(())[()]))
    return Point(tag, f"tensor ({plugin or 'no plugin'})", None)


def _tensor(data: bytes) -> tuple[npt.NDArray[np.float64] | None, list[bytes] | None]:
    """A TensorProto as flat float64, or its strings. Nothing is allocated by its shape, only by its bytes."""
    dtype = 0
    content = b""
    listed: dict[int, list[Value]] = {}
    for number, value in fields(data):
        if number == 1:
            dtype = as_int(value)
        elif number == 4:
            content = as_bytes(value)
        elif number not in (2, 3):
            listed.setdefault(number, []).append(value)
    if dtype == _STRING:
        return None, [as_bytes(value) for value in listed.get(8, ())]
    numpy_type = _NUMERIC.get(dtype)
    if numpy_type is None:
        return None, None
    if content:
        if len(content) % np.dtype(numpy_type).itemsize:
            raise WireError("a tensor's content does not fit its type")
        return np.frombuffer(content, dtype=numpy_type).astype(np.float64), None
    for number, values in listed.items():
        if number == 6:
            return as_doubles(values), None
        if number == 5:
            packed = b"".join(as_bytes(value) for value in values)
            if len(packed) % 4:
                raise WireError("packed floats are not a multiple of 4 bytes long")
            return np.frombuffer(packed, dtype="<f4").astype(np.float64), None
        if number == 13:  # half_val: the bits of a float16 in an int
            bits = np.array([item & 0xFFFF for item in as_varints(values)], dtype=np.uint16)
            return bits.view(np.float16).astype(np.float64), None
        if number in _VARINT_FIELDS:
            signed = [item - (1 << 64) if item >> 63 and number != 17 else item for item in as_varints(values)]
            return np.array(signed, dtype=np.float64), None
    return np.zeros(0), None


def _classic_histogram(tag: str, data: bytes) -> Point:
    low, high = 0.0, 0.0
    limits: list[Value] = []
    buckets: list[Value] = []
    for number, value in fields(data):
        if number == 1:
            low = as_double(value)
        elif number == 2:
            high = as_double(value)
        elif number == 6:
            limits.append(value)
        elif number == 7:
            buckets.append(value)
    right, counts = as_doubles(limits), as_doubles(buckets)
    if len(right) != len(counts):
        raise WireError("a histogram has not as many limits as buckets")
    if len(right) > 1 and counts[0] == 0:
        # Writers put an empty bucket first, whose limit is the left edge of the others.
        return Point(tag, "histogram", (_outer(right, low, high), counts[1:]))
    if not len(right):
        return Point(tag, "empty histogram", None)
    return Point(tag, "histogram", (_outer(np.concatenate(([min(low, right[0])], right)), low, high), counts))


def _outer(edges: npt.NDArray[np.float64], low: float, high: float) -> npt.NDArray[np.float64]:
    """Edges with the writers' +-1.8e308 replaced by the smallest and largest value seen."""
    huge = 1e308
    edges = edges.copy()
    if edges[0] < -huge and low <= edges[1]:
        edges[0] = low
    if edges[-1] > huge and high >= edges[-2]:
        edges[-1] = high
    return edges


def _hparams(tag: str, content: bytes) -> Point:
    """The hparams plugin's data: params from a session's start, a status from its end."""
    params: dict[str, Any] = {}
    what: Literal["params", "status"] | None = None
    status = 0
    for number, value in fields(content):
        if number == 3:
            what = "params"
            for inner, entry in fields(as_bytes(value)):
                if inner == 1:
                    name, plain = _hparam(as_bytes(entry))
                    params[name] = plain
        elif number == 4:
            what = "status"
            ended = last(as_bytes(value), 1)
            status = 0 if ended is None else as_int(ended)
    if what == "params":
        return Point(tag, "params", params)
    if what == "status":
        return Point(tag, "status", status)
    return Point(tag, "description", None)


def _hparam(entry: bytes) -> tuple[str, Any]:
    name, plain = "", None
    for number, value in fields(entry):
        if number == 1:
            name = as_text(value)
        elif number == 2:
            plain = _struct_value(as_bytes(value))
    return name, plain


def _struct_value(data: bytes) -> Any:
    plain: Any = None
    for number, value in fields(data):
        if number == 2:
            plain = as_double(value)
        elif number == 3:
            plain = as_text(value)
        elif number == 4:
            plain = bool(as_int(value))
    return plain
