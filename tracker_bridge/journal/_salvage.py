"""Bringing home what a killed process left in shared memory (see `_spool`): the last moments of its journal."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import msgspec

from tracker_bridge.journal._errors import WriterBusyError
from tracker_bridge.journal._files import WRITE, has_begun, note_path, noted_numbers, segment_path, write_at
from tracker_bridge.journal._format import (
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    SEAL,
    SEAL_SIZE,
    frame_size,
    is_intact,
    is_seal,
    unpack_frame,
)
from tracker_bridge.journal._lock import lock_journal
from tracker_bridge.journal._spool import Note, boot_id, open_spool


def salvage(folder: str | os.PathLike[str]) -> None:
    """Complete the segments of a journal whose writer is gone; nothing where one is there. Raises `OSError`."""
    folder = Path(folder)
    if not noted_numbers(folder):
        return
    try:
        fd = lock_journal(folder)
    except WriterBusyError:  # which has done it, or does
        return
    try:
        bring_home(folder)
    finally:
        os.close(fd)


def bring_home(folder: Path, *, last_chance: bool = False) -> int:
    """Complete the segments of a journal, in order; the caller has its lock. Raises `OSError`.

    What is on another machine stays there, for a call on that one; `last_chance`: the journal goes on here, so that
    could not be put in its place any more. Returns how many segments may lack their end for ever.
    """
    lost = 0
    for number in noted_numbers(folder):
        path = note_path(folder, number)
        with contextlib.suppress(msgspec.MsgspecError):  # not a note of ours
            note = msgspec.json.decode(path.read_bytes(), type=Note)
            here = note.host == socket.gethostname()
            if not here and not last_chance:
                break
            if not (here and _complete(folder, number, note)):
                lost += _lacks_its_end(segment_path(folder, number))
        path.unlink(missing_ok=True)
    return lost


def _complete(folder: Path, number: int, note: Note) -> bool:
    """Move what a spool holds to its segment; False if it is gone. Raises `OSError` if that cannot be written."""
    if note.boot != boot_id():
        return False
    try:
        spool = open_spool(Path(note.path))
    except OSError:
        return False
    with open(spool, "rb") as file:
        data = file.read()
    if any(data[:HEADER_SIZE]):  # else it was made ahead of time
        with contextlib.suppress(FileNotFoundError):  # deleted to stay within `max_disk`
            _write(segment_path(folder, number), data[: _whole(data)])
    if note.is_of(folder):  # a copy of the directory takes nothing from the original
        with contextlib.suppress(OSError):
            os.unlink(note.path)
    return True


def _lacks_its_end(path: Path) -> bool:
    """Whether a segment whose spool is gone had begun and is not sealed; a spool is removed after that."""
    try:
        end = path.read_bytes()[-SEAL_SIZE:]
    except FileNotFoundError:
        return False
    if not has_begun(path):
        return False
    length, check, sequence = unpack_frame(end, 0)
    return not (length == SEAL and is_seal(check, sequence))


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, WRITE)
    try:
        write_at(fd, data, 0)
        os.fsync(fd)  # what it is copied from is removed next
    finally:
        os.close(fd)


def _whole(data: bytes) -> int:
    """Where the intact frames end."""
    at = HEADER_SIZE
    while at + FRAME_HEADER_SIZE <= len(data):
        length, check, sequence = unpack_frame(data, at)
        if length == SEAL:
            return at + SEAL_SIZE if is_seal(check, sequence) else at
        body = at + FRAME_HEADER_SIZE
        if not length or length > len(data) - body or not is_intact(check, sequence, data[body : body + length]):
            return at
        at += frame_size(length)
    return at
