"""The framing of `.wandb` files: LevelDB's log in blocks of 32 KiB, with a seven-byte header and plain zlib CRC-32.

A record header is u32 checksum (of type and payload), u16 length, u8 type (1 whole, 2 first, 3 middle, 4 last). A
tail cut off by a kill is normal there and is counted, not an error.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from tracker_bridge.importers._files import regular
from tracker_bridge.importers._model import Damage, ForeignFormatError, Reading

MAX_RECORD = 128 << 20
"""A larger record is damage; the SDK itself skips rows above 10 MiB."""

_BLOCK = 32768
_HEADER = 7
_MAGIC = b":W&B"
_VERSION = struct.pack("<HB", 0xBEE1, 0)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

_header = struct.Struct("<IHB").unpack_from


def payloads(path: Path, reading: Reading) -> Iterator[bytes]:
    """The records of the file, in order. After damage, if reading goes on, it does so at the next block."""
    with regular(path).open("rb") as file:
        block = file.read(_BLOCK)
        if block[:4] != _MAGIC:
            raise ForeignFormatError(Damage(str(path), "header", "not a .wandb file"))
        if block[4:_HEADER] != _VERSION:
            raise ForeignFormatError(Damage(str(path), "header", "a .wandb file of another version"))
        at, base = _HEADER, 0
        parts: list[bytes] | None = None
        size = 0
        while True:
            while at + _HEADER <= len(block):
                crc, length, kind = _header(block, at)
                if length == 0 and kind == 0:
                    break
                payload = block[at + _HEADER : at + _HEADER + length]
                fault = _fault(payload, crc, length, kind, parts is not None, len(block) < _BLOCK)
                if fault == "":
                    reading.left_out["last record of a file, cut off"] += 1
                    return
                if fault is not None:
                    reading.on_damage(Damage(str(path), f"offset {base + at}", fault))
                    parts = None
                    break
                at += _HEADER + length
                if kind == _WHOLE:
                    yield payload
                    continue
                if kind == _FIRST:
                    parts, size = [], 0
                if parts is None:
                    continue
                parts.append(payload)
                size += length
                if size > MAX_RECORD:
                    reason = f"a record is larger than {MAX_RECORD} bytes"
                    reading.on_damage(Damage(str(path), f"offset {base + at}", reason))
                    parts = None
                elif kind == _LAST:
                    yield b"".join(parts)
                    parts = None
            base += len(block)
            if len(block) < _BLOCK:
                break
            block, at = file.read(_BLOCK), 0
        if parts is not None:
            reading.left_out["last record of a file, cut off"] += 1


def _fault(payload: bytes, crc: int, length: int, kind: int, inside: bool, final: bool) -> str | None:
    """What is wrong with a record: None nothing, empty: cut off by the end of the file, else the reason."""
    if len(payload) < length:
        return "" if final else "a record crosses its block"
    if zlib.crc32(payload, zlib.crc32(bytes((kind,)))) != crc:
        return "the checksum of a record does not match"
    if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
        return f"a record is of the unknown type {kind}"
    if kind in (_MIDDLE, _LAST) and not inside:
        return "a part of a record has no beginning"
    if kind in (_WHOLE, _FIRST) and inside:
        return "a record has no end"
    return None
