"""The TFRecord framing of TensorBoard's event files: length, masked CRC-32C of it, payload, masked CRC-32C of that.

Reads forward in blocks; a record cut off by the end of the file is normal there (a killed writer) and is counted, not
an error.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tracker_bridge.importers._crc32c import crc32c
from tracker_bridge.importers._files import regular
from tracker_bridge.importers._model import Damage, Reading

MAX_RECORD = 256 << 20
"""A larger record is damage; summaries are a few megabytes at most, and protobuf itself ends at 2 GiB."""

_BLOCK = 1 << 20
_HEADER = 12
_FOOTER = 4
_TORN = "last record of a file, cut off"
_LOST = "the length of a record is corrupt; nothing behind it can be found"
_MASK_DELTA = np.uint32(0xA282EAD8)

UInt32Array = npt.NDArray[np.uint32]

_length = struct.Struct("<Q").unpack_from


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of one block: payload i is `data[starts[i]:ends[i]]`. `offset` is where `data` lies in the file."""

    data: bytes
    starts: list[int]
    ends: list[int]
    offset: int


def chunks(path: Path, reading: Reading) -> Iterator[Chunk]:
    """The sound records of the file, in order. Damage is reported with its offset; reading then goes on if it can."""
    with regular(path).open("rb") as file:
        data, offset = b"", 0
        while True:
            more = file.read(_BLOCK)
            data += more
            starts, ends = _frame(data)
            sound = _sound_lengths(data, starts)
            if sound < len(starts):
                where = f"offset {offset + starts[sound] - _HEADER}"
                yield from _checked(path, reading, Chunk(data, starts[:sound], ends[:sound], offset))
                reading.on_damage(Damage(str(path), where, _LOST))
                return
            yield from _checked(path, reading, Chunk(data, starts, ends, offset))
            used = ends[-1] + _FOOTER if ends else 0
            data, offset = data[used:], offset + used
            if not more:
                if len(data) >= _HEADER and not _sound_lengths(data, [_HEADER]):
                    reading.on_damage(Damage(str(path), f"offset {offset}", _LOST))
                elif data:
                    reading.left_out[_TORN] += 1
                return
            skipped = yield from _large(path, reading, file, data, offset)
            if skipped is None:
                return
            if skipped:
                data, offset = b"", offset + skipped


def _large(
    path: Path, reading: Reading, file: BinaryIO, data: bytes, offset: int
) -> Generator[Chunk, None, int | None]:
    """Deal with a record that is larger than a block. Returns (generator) the bytes consumed, None to stop."""
    if len(data) < _HEADER:
        return 0
    size = int(_length(data)[0])
    total = _HEADER + size + _FOOTER
    if total <= len(data) + _BLOCK:
        return 0
    # Nothing is allocated for a length before its checksum and the size of the file back it.
    if not _sound_lengths(data, [_HEADER]):
        reading.on_damage(Damage(str(path), f"offset {offset}", _LOST))
        return None
    if total > path.stat().st_size - offset:
        reading.left_out[_TORN] += 1
        return None
    if size > MAX_RECORD:
        reason = f"a record of {size} bytes is larger than {MAX_RECORD}"
        reading.on_damage(Damage(str(path), f"offset {offset}", reason))
        file.seek(offset + total)
        return total
    whole = data + file.read(total - len(data))
    if len(whole) == total:
        yield from _checked(path, reading, Chunk(whole, [_HEADER], [_HEADER + size], offset))
    return len(whole)


def _frame(data: bytes) -> tuple[list[int], list[int]]:
    starts, ends = [], []
    at, last = 0, len(data) - _HEADER - _FOOTER
    while at <= last:
        end = at + _HEADER + _length(data, at)[0]
        if end > len(data) - _FOOTER:
            break
        starts.append(at + _HEADER)
        ends.append(end)
        at = end + _FOOTER
    return starts, ends


def _masked(data: bytes, starts: list[int], ends: list[int]) -> UInt32Array:
    crc = crc32c(data, starts, ends)
    turned: UInt32Array = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    turned += _MASK_DELTA
    return turned


def _stored(data: bytes, at: npt.NDArray[np.int64]) -> UInt32Array:
    raw = np.frombuffer(data, dtype=np.uint8)[at[:, None] + np.arange(4)]
    return np.ascontiguousarray(raw).view("<u4")[:, 0]


def _sound_lengths(data: bytes, starts: list[int]) -> int:
    """How many records from the first on have a length whose checksum holds."""
    if not starts:
        return 0
    at = np.asarray(starts, dtype=np.int64) - _HEADER
    # Few lengths differ, so their checksums are computed once each.
    lengths = np.ascontiguousarray(np.frombuffer(data, dtype=np.uint8)[at[:, None] + np.arange(8)]).view("<u8")[:, 0]
    distinct, inverse = np.unique(lengths, return_inverse=True)
    encoded = distinct.astype("<u8").tobytes()
    firsts = list(range(0, len(encoded), 8))
    wrong = _masked(encoded, firsts, [first + 8 for first in firsts])[inverse] != _stored(data, at + 8)
    return int(wrong.argmax()) if wrong.any() else len(starts)


def _checked(path: Path, reading: Reading, chunk: Chunk) -> Iterator[Chunk]:
    """The chunk without the records whose payload is corrupt."""
    if not chunk.starts:
        return
    wrong = _masked(chunk.data, chunk.starts, chunk.ends) != _stored(chunk.data, np.asarray(chunk.ends, dtype=np.int64))
    if not wrong.any():
        yield chunk
        return
    bad = set(np.flatnonzero(wrong).tolist())
    first = min(bad)
    if first:
        yield Chunk(chunk.data, chunk.starts[:first], chunk.ends[:first], chunk.offset)
    for index in sorted(bad):
        where = f"offset {chunk.offset + chunk.starts[index] - _HEADER}"
        reading.on_damage(Damage(str(path), where, "the checksum of a record does not match"))
    rest = [index for index in range(first, len(chunk.starts)) if index not in bad]
    if rest:
        yield Chunk(chunk.data, [chunk.starts[i] for i in rest], [chunk.ends[i] for i in rest], chunk.offset)
