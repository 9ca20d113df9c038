"""The TFRecord frame around each event: length and payload, each followed by its masked CRC-32C.

Format: https://github.com/tensorflow/tensorboard/blob/master/tensorboard/data/server/tf_record.rs. Bytes only; what
is in a payload is not known here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from google_crc32c import value as crc32c

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = _LENGTH.size + _CRC.size


def frame(payload: bytes) -> bytes:
    """`payload` as one record of an event file."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _masked(length), payload, _masked(payload)))


def read_frames(path: Path, offset: int = 0) -> Iterator[bytes]:
    """The payloads from `offset` on, up to the end or to the first record that is torn or damaged."""
    with path.open("rb") as file:
        file.seek(offset)
        while True:
            header = file.read(_HEADER)
            if len(header) < _HEADER or _masked(header[: _LENGTH.size]) != header[_LENGTH.size :]:
                return
            (length,) = _LENGTH.unpack_from(header)
            payload = file.read(length)
            if len(payload) < length or _masked(payload) != file.read(_CRC.size):
                return
            yield payload


def _masked(data: bytes) -> bytes:
    crc: int = crc32c(data)
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
