"""W&B's transaction log (`.wandb`), read just far enough to know which rows are in it. Standard library only.

The format is LevelDB's log: blocks of 32 KiB with records of crc32, length (u16), kind (1 whole, 2 first, 3 middle,
4 last), after a file header of 7 bytes. Each record is a protobuf `Record`, whose field 2 is a history row and whose
field 18 is the run's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

_BLOCK = 32 * 1024
_HEADER = Struct("<IHB")
_FILE_HEADER = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _EXIT = 2, 18


class LogTail:
    """Reads what was added to a log since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = _FILE_HEADER
        self._partial = bytearray()
        self.rows = 0
        """History rows seen so far."""
        self.ended = False
        """Whether the record of the run's end was seen."""

    def look(self) -> int:
        """Read on; returns `rows`. Raises `OSError`."""
        for _ in self.history():
            pass
        return self.rows

    def history(self) -> Iterator[bytes]:
        """The history rows (protobuf `HistoryRecord`) added since the last look. A torn end is read later."""
        for payload in self._records():
            row = _field(payload, _HISTORY)
            if row is not None:
                self.rows += 1
                yield row
            elif _field(payload, _EXIT) is not None:
                self.ended = True

    def _records(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        start = self._offset
        while True:
            at = self._offset - start
            left = _BLOCK - self._offset % _BLOCK
            if left < _HEADER.size:
                if at + left > len(data):
                    return
                self._offset += left
                continue
            if at + _HEADER.size > len(data):
                return
            _, length, kind = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + length
            if end > len(data) or (kind == 0 and length == 0):
                return
            self._offset += _HEADER.size + length
            body = data[at + _HEADER.size : end]
            if kind == _WHOLE:
                yield body
            elif kind == _FIRST:
                self._partial = bytearray(body)
            else:
                self._partial += body
                if kind == _LAST:
                    yield bytes(self._partial)
                    self._partial = bytearray()


def _field(message: bytes, wanted: int) -> bytes | None:
    """The bytes of length-delimited field `wanted` of a protobuf message; None if it has none."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == 0:
            _, at = _varint(message, at)
        elif wire == 1:
            at += 8
        elif wire == 5:
            at += 4
        elif wire == 2:
            length, at = _varint(message, at)
            if tag >> 3 == wanted:
                return message[at : at + length]
            at += length
        else:
            return None
    return None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
