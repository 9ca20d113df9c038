"""Writing one segment: memory-mapped where the file system can, plain writes where it cannot.

Everything here may raise `OSError`; the writer turns that into a counted drop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
from pathlib import Path
from typing import Protocol

from tracker_bridge.journal._format import (
    FRAME_HEADER_SIZE,
    SEAL_SIZE,
    SegmentHeader,
    frame_word,
    seal_word,
    segment_path,
)

try:
    import mmap
except ImportError:  # some embedded builds
    mmap = None  # type: ignore[assignment]

_WORD = struct.Struct("<QQ")
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODEV)
_ZEROS = bytes(1 << 20)
# A first write to a page costs 3 us of page fault on ext4, seven times the copy. Linux 5.14 faults a range in at once.
_MADV_POPULATE_WRITE = 23
POPULATE = 128 << 10
"""Bytes made resident in one go: about 100 us, once in a thousand records of 100 bytes."""


class Segment(Protocol):
    """A segment that is open for writing. `size` is where frames must end at the latest, seal included."""

    number: int
    size: int

    def put(self, offset: int, payload: bytes, crc: int, sequence: int) -> None:
        """Write a frame at `offset`; it must fit."""

    def seal(self, offset: int, sequence: int) -> None:
        """Mark the end at `offset` and give back what is unused."""

    def release(self) -> None:
        """Let go of the file; nothing may be written afterwards."""


class MappedSegment:
    """A preallocated file in memory. `view` and `words` are the same bytes, by byte and by 8."""

    def __init__(self, number: int, size: int, fd: int) -> None:
        self.number = number
        self.size = size
        self._fd = fd
        self._map = mmap.mmap(fd, size)
        self.view = memoryview(self._map)
        self.words = self.view.cast("Q")
        self._resident = 0

    def populate(self, end: int) -> int:
        """Make pages resident up to at least `end`, where the system can; how far they now are."""
        start, end = self._resident, min(-(-end // POPULATE) * POPULATE, self.size)
        if end > start and sys.platform == "linux":
            # Older kernels answer EINVAL; the first write to each page then faults it in, as it always did.
            with contextlib.suppress(OSError):
                self._map.madvise(_MADV_POPULATE_WRITE, start, end - start)
        self._resident = max(start, end)
        return self._resident

    def put(self, offset: int, payload: bytes, crc: int, sequence: int) -> None:
        """See `Segment`."""
        body = offset + FRAME_HEADER_SIZE
        self.view[body : body + len(payload)] = payload
        self.words[(offset >> 3) + 1] = sequence
        self.words[offset >> 3] = frame_word(len(payload), crc, sequence)

    def seal(self, offset: int, sequence: int) -> None:
        """See `Segment`."""
        self.words[(offset >> 3) + 1] = sequence
        self.words[offset >> 3] = seal_word(sequence)
        self._unmap()
        os.ftruncate(self._fd, offset + SEAL_SIZE)
        self.size = offset + SEAL_SIZE

    def release(self) -> None:
        """See `Segment`."""
        self._unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _unmap(self) -> None:
        self.words.release()
        self.view.release()
        self._map.close()


class PlainSegment:
    """A file that grows with each frame."""

    def __init__(self, number: int, size: int, fd: int) -> None:
        self.number = number
        self.size = size
        self._fd = fd

    def put(self, offset: int, payload: bytes, crc: int, sequence: int) -> None:
        """See `Segment`."""
        head = _WORD.pack(frame_word(len(payload), crc, sequence), sequence)
        write_at(self._fd, head + payload + bytes(-len(payload) % 8), offset)

    def seal(self, offset: int, sequence: int) -> None:
        """See `Segment`."""
        write_at(self._fd, _WORD.pack(seal_word(sequence), sequence), offset)
        os.ftruncate(self._fd, offset + SEAL_SIZE)
        self.size = offset + SEAL_SIZE

    def release(self) -> None:
        """See `Segment`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def create_segment(folder: Path, header: SegmentHeader, size: int) -> MappedSegment | PlainSegment:
    """A new segment of `size` bytes, visible to readers once its header is written. Raises `OSError`."""
    path = segment_path(folder, header.number)
    hidden = path.with_suffix(".new")
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        segment = _open_best(header.number, size, fd)
        try:
            write_at(fd, header.pack(), 0)
            os.replace(hidden, path)
        except BaseException:
            if isinstance(segment, MappedSegment):
                segment._unmap()
            raise
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise
    return segment


def seal_file(path: Path, offset: int, sequence: int) -> None:
    """End a segment that its writer left behind: clear what is torn after `offset`, seal it there."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        os.ftruncate(fd, offset)
        write_at(fd, _WORD.pack(seal_word(sequence), sequence), offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """All of `data` at `offset`."""
    with memoryview(data) as view:
        done = 0
        while done < len(data):
            done += _pwrite(fd, view[done:], offset + done)


def _open_best(number: int, size: int, fd: int) -> MappedSegment | PlainSegment:
    # The words are stored in the machine's own order, and the format is little-endian.
    if mmap is None or sys.byteorder != "little":
        return PlainSegment(number, size, fd)
    _allocate(fd, size)
    try:
        return MappedSegment(number, size, fd)
    except (OSError, ValueError):
        os.ftruncate(fd, 0)
        return PlainSegment(number, size, fd)


def _allocate(fd: int, size: int) -> None:
    # Only blocks that exist may be mapped: a store into a hole of a full disk is SIGBUS, which kills the training.
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        try:
            allocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
        else:
            return
    for offset in range(0, size, len(_ZEROS)):
        write_at(fd, _ZEROS[: size - offset], offset)


def _pwrite(fd: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows
    return os.write(fd, data)
