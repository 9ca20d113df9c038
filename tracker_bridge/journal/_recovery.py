"""Finding out where a journal ends and what was defined in it, to go on writing. Reads only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tracker_bridge.journal._definitions import Definitions
from tracker_bridge.journal._entries import Entry
from tracker_bridge.journal._errors import JournalError
from tracker_bridge.journal._files import READ, segment_numbers, segment_path
from tracker_bridge.journal._format import (
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    JOURNAL_FORMAT,
    SEAL,
    SEAL_SIZE,
    frame_size,
    is_intact,
    is_seal,
    unpack_frame,
    unpack_header,
)
from tracker_bridge.journal._position import Position
from tracker_bridge.journal._reader import JournalReader, find_frame


@dataclass(frozen=True, slots=True)
class Survey:
    """`number` is the last segment's (0: there is none), `sequence` the next record's.

    `open_segment` is where the last segment must be sealed, None if it is.
    """

    sequence: int
    number: int
    open_segment: int | None
    definitions: Definitions


def survey(folder: Path, run: bytes) -> Survey:
    """Look at the journal in `folder`. Raises `JournalError` if it is another run's or a newer format's, `OSError`."""
    numbers = segment_numbers(folder)
    # Those at the end without a byte in them were made ahead of time and never began; `create_segment` replaces them.
    while numbers and not any(segment_path(folder, numbers[-1]).read_bytes()):
        numbers.pop()
    if not numbers:
        return Survey(0, 0, None, Definitions())
    sequence: int | None = None
    open_segment: int | None = None
    for number in reversed(numbers):
        path = segment_path(folder, number)
        data = path.read_bytes()
        header = unpack_header(data)
        if header is not None and header.journal_format > JOURNAL_FORMAT:
            raise JournalError(
                f"{path} was written by a newer tracker_bridge; upgrade with: pip install -U tracker-bridge"
            )
        if header is not None and header.run != run:
            raise JournalError(f"{folder} holds the journal of another run; give this run its own directory")
        sequence, tail, sealed = _tail(path, data, header.first if header else None)
        if number == numbers[-1] and not sealed:
            open_segment = tail
        if sequence is not None:
            break
    return Survey(sequence or 0, numbers[-1], open_segment, _definitions(folder, numbers))


def _tail(path: Path, data: bytes, first: int | None) -> tuple[int | None, int, bool]:
    """The next sequence (None: nobody knows), where it would be written, and whether the segment is sealed there."""
    sequence, offset = first, HEADER_SIZE
    while True:
        if offset + FRAME_HEADER_SIZE <= len(data):
            length, check, found = unpack_frame(data, offset)
            if length == SEAL and is_seal(check, found):
                return found, offset, True
            body = offset + FRAME_HEADER_SIZE
            if 0 < length <= len(data) - body and is_intact(check, found, data[body : body + length]):
                sequence = max(found + 1, sequence or 0)
                offset += frame_size(length)
                continue
        fd = os.open(path, READ)
        try:
            further = find_frame(fd, offset + 8, sequence or 0)
        finally:
            os.close(fd)
        if further is None:
            break
        offset = further[0]
    # A frame that has a length was whole once: its number is used up, and readers are told that it is gone.
    if sequence is not None and len(data) - offset > SEAL_SIZE:
        length, check, found = unpack_frame(data, offset)
        if length not in (0, SEAL) and not is_seal(check, found):
            sequence += 1
    return sequence, offset, False


def _definitions(folder: Path, numbers: list[int]) -> Definitions:
    """What is defined at the end. Every segment but the first begins with all that was defined before it."""
    for number in reversed(numbers):
        with segment_path(folder, number).open("rb") as file:
            header = unpack_header(file.read(HEADER_SIZE))
        if number != numbers[0] and header is None:
            continue
        definitions = Definitions()
        start = Position(header.first if header else 0, number, HEADER_SIZE)
        with JournalReader(folder, start) as reader:
            items = reader.read()
            # Its first record is the snapshot, if anything was defined. A damaged one sends us further back.
            first = items[0] if items else None
            if number != numbers[0] and not (isinstance(first, Entry) and first.sequence == start.sequence):
                continue
            while items:
                for item in items:
                    if isinstance(item, Entry):
                        definitions.apply(item.record)
                items = reader.read()
        return definitions
    return Definitions()
