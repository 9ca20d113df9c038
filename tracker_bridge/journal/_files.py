"""The names of segments, and reading and writing at an offset. Decodes nothing but headers."""

from __future__ import annotations

import os
from pathlib import Path

from tracker_bridge.journal._format import HEADER_SIZE, SegmentHeader, unpack_header

_SUFFIX = ".seg"
_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
READ = os.O_RDONLY | _CLOEXEC
WRITE = os.O_RDWR | _CLOEXEC
CREATE = WRITE | os.O_CREAT | os.O_EXCL


def segment_path(folder: Path, number: int) -> Path:
    """`00000001.seg` for 1."""
    return folder / f"{number:08d}{_SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    """Numbers of the segments that exist, ascending; none if there is no such folder. Raises `OSError`."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def begun_numbers(folder: Path) -> list[int]:
    """`segment_numbers` without those at the end that were made ahead of time and have not begun."""
    numbers = segment_numbers(folder)
    while numbers and not has_begun(segment_path(folder, numbers[-1])):
        numbers.pop()
    return numbers


def has_begun(path: Path) -> bool:
    """Whether the segment has a header, whole or damaged."""
    return any(_head(path))


def read_header(path: Path) -> SegmentHeader | None:
    """The header of a segment; None if it is damaged, has not begun or does not exist."""
    return unpack_header(_head(path))


def read_at(fd: int, size: int, offset: int) -> bytes:
    """At most `size` bytes from `offset` on; fewer at the end of the file."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows
    return os.read(fd, size)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """All of `data` at `offset`. Raises `OSError`, and then part of it may be written."""
    done = _pwrite(fd, data, offset)
    while done < len(data):
        done += _pwrite(fd, data[done:], offset + done)


def _head(path: Path) -> bytes:
    try:
        fd = os.open(path, READ)
    except FileNotFoundError:
        return b""
    try:
        return read_at(fd, HEADER_SIZE, 0)
    finally:
        os.close(fd)


def _pwrite(fd: int, data: bytes, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows
    return os.write(fd, data)
