"""A row of scalars to the bytes of one `Event` message, from a template that is built once for each set of series.

Everything but the time, the step and the float32 values is equal in all rows of the same series, so a row costs one
copy of the template and one scatter of its values. The field numbers are those of event.proto and summary.proto:
https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto. Nothing here touches a file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WALL_TIME = struct.Struct("<cd")
_UINT64 = 0xFFFF_FFFF_FFFF_FFFF
_LARGEST = np.finfo(np.float32).max

SUMMARY = b"\x2a"
"""Key of `Event.summary` (field 5)."""


class Template:
    """The `Summary` of one set of series, with places for the values."""

    __slots__ = ("_bytes", "_places", "_summary_head")

    def __init__(self, names: Sequence[str]) -> None:
        summary = bytearray()
        ends = np.empty(len(names), dtype=np.intp)
        for slot, name in enumerate(names):
            tag = name.encode()
            value = b"\x0a" + varint(len(tag)) + tag + b"\x15\0\0\0\0"
            summary += b"\x0a" + varint(len(value)) + value
            ends[slot] = len(summary)
        self._bytes = np.frombuffer(bytes(summary), dtype=np.uint8)
        self._places = (ends[:, None] + np.arange(-4, 0)).ravel()
        self._summary_head = SUMMARY + varint(len(summary))

    def event(self, time_ns: int, step: int, values: npt.NDArray[np.float64]) -> bytes:
        """The event with `values`, float64 [N]."""
        summary = self._bytes.copy()
        summary[self._places] = to_float32(values).view(np.uint8)
        return b"".join((event_head(time_ns, step), self._summary_head, summary.tobytes()))


def event_head(time_ns: int, step: int) -> bytes:
    """The first fields of every event: `wall_time` (seconds) and `step` (int64)."""
    return _WALL_TIME.pack(b"\x09", time_ns / 1e9) + b"\x10" + varint(step & _UINT64)


def summary_event(time_ns: int, step: int, summary: bytes) -> bytes:
    """An event with an encoded `Summary`."""
    return event_head(time_ns, step) + SUMMARY + varint(len(summary)) + summary


def version_event(time_ns: int) -> bytes:
    """The event that must be the first of each file."""
    version = b"brain.Event:2"
    return _WALL_TIME.pack(b"\x09", time_ns / 1e9) + b"\x1a" + varint(len(version)) + version


def is_version(payload: bytes) -> bool:
    """Whether an event is one of `version_event`."""
    return payload[9:10] == b"\x1a"


def to_float32(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Little-endian float32 [N]. A finite value beyond float32 becomes the largest: it must not look like infinity."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = values.astype("<f4")
        infinite = np.isinf(narrow)
        if infinite.any():
            overflowed = infinite & np.isfinite(values)
            narrow[overflowed] = np.copysign(_LARGEST, values[overflowed])
    return narrow


def varint(number: int) -> bytes:
    """`number` (not negative) as a protobuf varint."""
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
