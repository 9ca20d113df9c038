"""Bytes of a segment. Knows the layout only: touches no file and decodes no record.

A segment is a header of 64 bytes (all zeros until the segment begins) and then frames, each at a multiple of 8 bytes.
All integers are little-endian. A frame:

    0  u32 length of the payload; 0 = nothing here yet, 0xFFFFFFFF = seal (no payload; `sequence` is the next one)
    4  u32 check: crc32 of the payload, XORed with both halves of the sequence
    8  u64 sequence
    16 payload, then zeros up to the next multiple of 8

The first word (length and check) is stored last and in one piece, so another process sees either nothing or a whole
frame; the check catches what a power cut or a bad disk leaves behind.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from tracker_bridge.records import RECORD_FORMAT

try:
    from zlib_ng.zlib_ng import crc32 as crc32  # the same sum, five times as fast for a vector of norms
except ImportError:  # a platform without a wheel of it
    from zlib import crc32 as crc32

JOURNAL_FORMAT = 1
HEADER_SIZE = 64
FRAME_HEADER_SIZE = 16
SEAL_SIZE = FRAME_HEADER_SIZE
SEAL = 0xFFFFFFFF

_MAGIC = b"tbridge\n"
_HEADER = struct.Struct("<8sIIQQ16s12xI")
_FRAME = struct.Struct("<IIQ")
unpack_frame = _FRAME.unpack_from
"""`unpack_frame(buffer, offset) -> (length, check, sequence)`."""

_SEAL_CRC = crc32(b"seal")

# zlib lets go of the interpreter lock for more than 5 KiB, and beside a busy Python thread it then waits a whole
# switch interval (5 ms) to get it back. Pieces of that size keep the lock.
PIECE = 5 << 10


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """`first` is the sequence of the segment's first record; `run` identifies the run (`run_digest`)."""

    number: int
    first: int
    run: bytes
    journal_format: int = JOURNAL_FORMAT
    record_format: int = RECORD_FORMAT

    def pack(self) -> bytes:
        """64 bytes."""
        body = _HEADER.pack(_MAGIC, self.journal_format, self.record_format, self.number, self.first, self.run, 0)
        return body[:-4] + struct.pack("<I", crc32(body[:-4]))


def unpack_header(data: bytes) -> SegmentHeader | None:
    """The header in the first 64 bytes; None if it is damaged or not one of ours."""
    if len(data) < HEADER_SIZE:
        return None
    magic, journal_format, record_format, number, first, run, check = _HEADER.unpack_from(data)
    if magic != _MAGIC or crc32(data[: HEADER_SIZE - 4]) != check:
        return None
    return SegmentHeader(number, first, run, journal_format, record_format)


def run_digest(run_id: str) -> bytes:
    """16 bytes that stand for the run in each segment header."""
    return hashlib.blake2b(run_id.encode(), digest_size=16).digest()


def frame_size(length: int) -> int:
    """Bytes that a payload of `length` takes."""
    return (length + FRAME_HEADER_SIZE + 7) & -8


def checksum(payload: bytes | memoryview) -> int:
    """crc32 of the payload."""
    if len(payload) <= PIECE:
        return crc32(payload)
    view = memoryview(payload)
    crc = crc32(view[:PIECE])
    for start in range(PIECE, len(view), PIECE):
        crc = crc32(view[start : start + PIECE], crc)
    return crc


def frame_word(length: int, crc: int, sequence: int) -> int:
    """The first 8 bytes of a frame as one integer."""
    return length | (crc ^ (sequence & 0xFFFFFFFF) ^ (sequence >> 32)) << 32


def seal_word(sequence: int) -> int:
    """The first 8 bytes of a seal as one integer."""
    return frame_word(SEAL, _SEAL_CRC, sequence)


def is_seal(check: int, sequence: int) -> bool:
    """Whether a frame header whose length is `SEAL` is a seal."""
    return check == _SEAL_CRC ^ (sequence & 0xFFFFFFFF) ^ (sequence >> 32)


def is_intact(check: int, sequence: int, payload: bytes | memoryview) -> bool:
    """Whether `check` belongs to the sequence and the payload."""
    return check == crc32(payload) ^ (sequence & 0xFFFFFFFF) ^ (sequence >> 32)
