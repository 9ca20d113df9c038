"""Reading a journal, from any process, while it is written or long after. Never writes, never blocks.

Damage is reported as a `Gap`, not raised.

It reads with `pread` and never maps: the writer cuts segments off when it seals them, and a mapped page behind the
cut would be SIGBUS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec
import numpy as np

from tracker_bridge.journal._entries import Entry, Gap, GapReason, Item
from tracker_bridge.journal._errors import JournalError
from tracker_bridge.journal._files import READ, begun_numbers, has_begun, read_at, read_header, segment_path
from tracker_bridge.journal._format import (
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    JOURNAL_FORMAT,
    SEAL,
    SegmentHeader,
    frame_size,
    is_intact,
    is_seal,
    unpack_frame,
    unpack_header,
)
from tracker_bridge.journal._position import Position
from tracker_bridge.records import decode

_CHUNK = 256 << 10
_WINDOW = 1 << 20
_SETTLED_SECONDS = 60.0

_Stop = Literal["full", "more", "idle", "sealed", "damaged"]


class JournalReader:
    """Reads records in order from `position` on.

    Not thread-safe; one for each consumer. Raises `JournalError` if the journal was written by a newer format, and
    `OSError` if the folder cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], position: Position = Position()) -> None:  # noqa: B008
        self._folder = Path(folder)
        self._sequence = position.sequence
        self._number = position.segment
        self._offset = max(position.offset, HEADER_SIZE)
        self._fd = -1
        self._searched = (0, 0)
        self._end = Position()

    @property
    def position(self) -> Position:
        """The place right after the last record that `read` returned."""
        return Position(self._sequence, self._number, self._offset if self._number else 0)

    def read(self, max_records: int = 10_000, max_bytes: int = 8 << 20) -> list[Item]:
        """What is there, at most `max_records` entries or about `max_bytes` of payload (but at least one entry).

        An empty list means that there is nothing yet. Never waits.
        """
        items: list[Item] = []
        retried = False
        while len(items) < max_records and max_bytes > 0:
            if self._fd < 0 and not self._locate(items):
                break
            stop, used = self._read_chunk(items, max_records, max_bytes)
            max_bytes -= used
            if used or stop == "more":
                retried = False
            if stop == "sealed":
                if not self._advance(items):
                    break
            elif stop in ("idle", "damaged"):
                # Read it once more: the frame may have become whole, or the segment been ended, in this moment.
                if not retried:
                    retried = self._later() is not None or stop == "damaged"
                    if retried:
                        continue
                    if not self._maybe_hole():
                        break
                retried = False
                if not self._resynchronise(items, stop):
                    break
        return items

    def end(self) -> int:
        """The sequence that the next record will get, as far as anyone can see now."""
        numbers = begun_numbers(self._folder)
        if not numbers:
            return self._sequence
        number = numbers[-1]
        known = max(self._end, self.position, key=lambda place: (place.segment, place.offset))
        try:
            fd = os.open(segment_path(self._folder, number), READ)
        except FileNotFoundError:
            return max(known.sequence, self._sequence)
        try:
            if known.segment != number:
                header = unpack_header(read_at(fd, HEADER_SIZE, 0))
                known = Position(header.first if header else known.sequence, number, HEADER_SIZE)
            self._end = _walk(fd, known)
        finally:
            os.close(fd)
        return max(self._end.sequence, self._sequence)

    def close(self) -> None:
        """Let go of the open file; `read` would open it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    # Finding segments

    def _locate(self, items: list[Item]) -> bool:
        """Open the segment that holds `_sequence`, or the oldest one after it. False if there is none."""
        while True:
            if self._number and self._open(self._number):
                header = unpack_header(read_at(self._fd, HEADER_SIZE, 0))
                if header is None or header.first <= self._sequence:
                    if not self._fits():
                        self._offset = HEADER_SIZE
                    return True
                self.close()  # the sequence decides, not the place beside it
            numbers = begun_numbers(self._folder)
            number, first = self._best(numbers)
            if not number or not self._open(number):
                if not number:
                    return False
                continue  # deleted in this moment
            self._offset = HEADER_SIZE
            self._number = number
            if first is not None and first > self._sequence:
                self._skip_to(first, items, "max_disk" if number > 1 else "corrupt")
            return True

    def _fits(self) -> bool:
        """Whether what is at `_offset` can be the record `_sequence` (also: not there yet, or damaged)."""
        if self._offset % 8 or self._offset > os.fstat(self._fd).st_size:
            return False
        head = read_at(self._fd, FRAME_HEADER_SIZE, self._offset)
        return len(head) < FRAME_HEADER_SIZE or not any(head) or unpack_frame(head, 0)[2] == self._sequence

    def _best(self, numbers: list[int]) -> tuple[int, int | None]:
        """The last segment that begins at or before `_sequence`, else the oldest; and where it begins if it says."""
        best: tuple[int, int | None] = (0, None)
        for number in numbers:
            header = self._header(number)
            if best[0] and header is not None and header.first > self._sequence:
                break
            if header is not None or not best[0]:
                best = (number, header.first if header else None)
        return best

    def _header(self, number: int) -> SegmentHeader | None:
        header = read_header(segment_path(self._folder, number))
        if header is not None and header.journal_format > JOURNAL_FORMAT:
            raise JournalError(
                f"{self._folder} was written by a newer tracker_bridge (journal format {header.journal_format}, this "
                f"one reads up to {JOURNAL_FORMAT}); upgrade with: pip install -U tracker-bridge"
            )
        return header

    def _open(self, number: int) -> bool:
        self._header(number)
        try:
            self._fd = os.open(segment_path(self._folder, number), READ)
        except FileNotFoundError:
            return False
        return True

    def _later(self) -> int | None:
        """The number of the next segment, if there is one."""
        if has_begun(segment_path(self._folder, self._number + 1)):
            return self._number + 1
        return next((number for number in begun_numbers(self._folder) if number > self._number), None)

    def _advance(self, items: list[Item]) -> bool:
        """Go to the next segment; False if there is none yet."""
        number = self._later()
        if number is None:
            return False
        reason: GapReason = "corrupt" if number == self._number + 1 else "max_disk"
        header = self._header(number)
        self.close()
        self._number, self._offset = number, HEADER_SIZE
        if header is not None and header.first > self._sequence:
            self._skip_to(header.first, items, reason)
        return True

    def _skip_to(self, sequence: int, items: list[Item], reason: GapReason) -> None:
        items.append(Gap(self._sequence, sequence - self._sequence, reason))
        self._sequence = sequence

    # Reading frames

    def _read_chunk(self, items: list[Item], max_records: int, max_bytes: int) -> tuple[_Stop, int]:
        """Decode frames from one piece of the file; why it stopped, and the bytes it took."""
        chunk = read_at(self._fd, min(_CHUNK, max(max_bytes, 4096)), self._offset)
        view = memoryview(chunk)
        size = len(chunk)
        place = 0
        expected = self._sequence
        stop: _Stop = "more"
        while True:
            if place + FRAME_HEADER_SIZE > size:
                stop = "more" if place else "idle"
                break
            length, check, sequence = unpack_frame(chunk, place)
            if length == 0:
                stop = "idle"
                break
            if length == SEAL:
                stop = "sealed" if is_seal(check, sequence) else "damaged"
                if stop == "sealed" and sequence > expected:
                    items.append(Gap(expected, sequence - expected, "corrupt"))
                    expected = sequence
                break
            body = place + FRAME_HEADER_SIZE
            if body + length > size:
                if place:
                    stop = "more"
                    break
                if self._offset + body + length > os.fstat(self._fd).st_size:
                    stop = "damaged"
                    break
                chunk = read_at(self._fd, frame_size(length), self._offset)
                view = memoryview(chunk)
                size = len(chunk)
                if body + length > size:
                    stop = "damaged"
                    break
            payload = view[body : body + length]
            if not is_intact(check, sequence, payload):
                stop = "damaged"
                break
            if sequence >= expected:
                if sequence > expected:
                    items.append(Gap(expected, sequence - expected, "corrupt"))
                items.append(_entry(sequence, payload))
                expected = sequence + 1
            place += frame_size(length)
            if len(items) >= max_records or place >= max_bytes:
                stop = "full"
                break
        self._sequence = expected
        self._offset += place
        return stop, place

    def _maybe_hole(self) -> bool:
        """Whether intact frames could follow the empty place that was found at the end of the last segment.

        A writer leaves none, a power cut can. Looking costs a pass over the rest of the segment, so it is done at once
        only where something other than zeros follows right here, else when the file is at rest, once for each place.
        """
        if any(read_at(self._fd, 64, self._offset)):
            return True
        if self._searched == (self._number, self._offset):
            return False
        if time.time() - os.fstat(self._fd).st_mtime < _SETTLED_SECONDS:
            return False
        self._searched = (self._number, self._offset)
        return True

    def _resynchronise(self, items: list[Item], stop: _Stop) -> bool:
        """Get past what is damaged or missing here; False if nothing intact follows (yet)."""
        later = self._later()
        header = self._header(later) if later is not None else None
        if stop == "idle" and header is not None and header.first <= self._sequence:
            return self._advance(items)  # nothing is missing: its writer died before it could seal
        found = find_frame(self._fd, self._offset + 8, self._sequence)
        if self._is_whole_here():
            return True  # it was being written when it was read
        if found is not None:
            self._offset, sequence = found
            if sequence > self._sequence:
                self._skip_to(sequence, items, "corrupt")
            return True
        # Only past a segment that was over before it was searched: since then its writer may have gone on here.
        return later is not None and self._advance(items)

    def _is_whole_here(self) -> bool:
        head = read_at(self._fd, FRAME_HEADER_SIZE, self._offset)
        if len(head) < FRAME_HEADER_SIZE:
            return False
        length, check, sequence = unpack_frame(head, 0)
        if length in (0, SEAL):
            return length == SEAL and is_seal(check, sequence)
        payload = read_at(self._fd, length, self._offset + FRAME_HEADER_SIZE) if length <= _fd_size(self._fd) else b""
        return len(payload) == length and is_intact(check, sequence, payload)


def _fd_size(fd: int) -> int:
    return os.fstat(fd).st_size


def find_frame(fd: int, offset: int, expected: int) -> tuple[int, int] | None:
    """The first intact frame or seal from `offset` (a multiple of 8) on with a sequence of at least `expected`.

    Returns its offset and sequence. Looks at 1 MiB at a time.
    """
    size = os.fstat(fd).st_size
    while offset + FRAME_HEADER_SIZE <= size:
        chunk = read_at(fd, _WINDOW + FRAME_HEADER_SIZE, offset)
        words = np.frombuffer(chunk, dtype="<u8", count=len(chunk) // 8)
        # A record takes at least 16 bytes, which bounds the sequences that can follow in this file; what was cut out
        # by `first_sequence` of a recovered journal lies in another file.
        lengths = words[:-1] & 0xFFFFFFFF
        plausible = (lengths != 0) & (words[1:] >= expected) & (words[1:] <= expected + size // FRAME_HEADER_SIZE)
        for index in np.flatnonzero(plausible).tolist():
            place = offset + index * 8
            length, check, sequence = unpack_frame(chunk, index * 8)
            if length == SEAL:
                if is_seal(check, sequence):
                    return place, sequence
            elif place + FRAME_HEADER_SIZE + length <= size:
                payload = read_at(fd, length, place + FRAME_HEADER_SIZE)
                if len(payload) == length and is_intact(check, sequence, payload):
                    return place, sequence
        if len(chunk) < _WINDOW + FRAME_HEADER_SIZE:
            return None
        offset += _WINDOW
    return None


def scan(folder: str | os.PathLike[str]) -> Iterator[Item]:
    """Everything in the journal, from its oldest record to the newest that is whole now."""
    with JournalReader(folder) as reader:
        while items := reader.read():
            yield from items


def _entry(sequence: int, payload: memoryview) -> Item:
    try:
        return Entry(sequence, decode(payload))
    except msgspec.DecodeError:
        return Gap(sequence, 1, "unknown")


def _walk(fd: int, place: Position) -> Position:
    """Hop from frame header to frame header, without looking at payloads, up to the first empty place."""
    sequence, offset = place.sequence, place.offset
    while True:
        chunk = read_at(fd, _CHUNK, offset)
        inside = 0
        while inside + FRAME_HEADER_SIZE <= len(chunk):
            length, _, number = unpack_frame(chunk, inside)
            if length == SEAL:
                return Position(max(number, sequence), place.segment, offset + inside)
            if length == 0 or number < sequence or number > sequence + len(chunk):
                return Position(sequence, place.segment, offset + inside)
            sequence = number + 1
            inside += frame_size(length)
        if inside == 0 or (len(chunk) < _CHUNK and inside >= len(chunk)):
            return Position(sequence, place.segment, offset + inside)
        offset += inside
