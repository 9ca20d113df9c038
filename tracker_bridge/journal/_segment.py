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
from typing import Union

from tracker_bridge.journal._files import CREATE, READ, WRITE, has_begun, segment_path, write_at
from tracker_bridge.journal._format import (
    FRAME_HEADER_SIZE,
    SegmentHeader,
    frame_word,
    seal_word,
)

try:
    import mmap
except ImportError:  # some embedded builds
    mmap = None  # type: ignore[assignment]

_WORD = struct.Struct("<QQ")
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODEV)
_ZEROS = bytes(1 << 20)
_WARM_PIECE = 1 << 20
# A first write to a page costs 3 us of page fault on ext4, seven times the copy. Linux 5.14 faults a range in at once.
_MADV_POPULATE_WRITE = 23
POPULATE = 128 << 10
"""Bytes made resident in one go: about 100 us, once in a thousand records of 100 bytes."""


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

    def warm(self) -> None:
        """Make all pages resident without the interpreter lock, which `madvise` keeps. Only before `begin`."""
        # Reading zeros into a file of zeros is the one way of the standard library to touch pages with the lock free.
        with contextlib.suppress(OSError, AttributeError):
            zeros = os.open("/dev/zero", READ)
            try:
                done = 0
                while done < self.size:
                    with self.view[done : done + _WARM_PIECE] as piece:
                        done += os.readv(zeros, [piece])
                self._resident = self.size
            finally:
                os.close(zeros)

    def begin(self, header: SegmentHeader) -> None:
        """Make it visible to readers."""
        packed = header.pack()
        self.view[8 : len(packed)] = packed[8:]
        self.words[0] = int.from_bytes(packed[:8], "little")

    def put(self, offset: int, payload: bytes, crc: int, sequence: int) -> None:
        """Write a frame at `offset`; it must fit."""
        body = offset + FRAME_HEADER_SIZE
        self.view[body : body + len(payload)] = payload
        self.words[(offset >> 3) + 1] = sequence
        self.words[offset >> 3] = frame_word(len(payload), crc, sequence)

    def seal(self, offset: int, sequence: int) -> None:
        """Mark the end at `offset`; `sequence` is the next record's."""
        self.words[(offset >> 3) + 1] = sequence
        self.words[offset >> 3] = seal_word(sequence)

    def cut(self, end: int) -> None:
        """Give back what is unused after `end`. Nothing may be written afterwards."""
        self._unmap()
        os.ftruncate(self._fd, end)

    def release(self) -> None:
        """Let go of the file. Nothing may be written afterwards."""
        self._unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _unmap(self) -> None:
        self.words.release()
        self.view.release()
        self._map.close()


class PlainSegment:
    """A file that grows with each frame. Its methods do what those of `MappedSegment` do, and raise `OSError`."""

    def __init__(self, number: int, size: int, fd: int) -> None:
        self.number = number
        self.size = size
        self._fd = fd

    def fileno(self) -> int:
        """The file's descriptor, for who writes whole frames as `put` does."""
        return self._fd

    def warm(self) -> None:
        """Nothing to make resident."""

    def begin(self, header: SegmentHeader) -> None:
        """Make it visible to readers."""
        write_at(self._fd, header.pack(), 0)

    def put(self, offset: int, payload: bytes, crc: int, sequence: int) -> None:
        """Write a frame at `offset`."""
        head = _WORD.pack(frame_word(len(payload), crc, sequence), sequence)
        write_at(self._fd, head + payload + bytes(-len(payload) % 8), offset)

    def seal(self, offset: int, sequence: int) -> None:
        """Mark the end at `offset`."""
        write_at(self._fd, _WORD.pack(seal_word(sequence), sequence), offset)

    def cut(self, end: int) -> None:
        """Remove what a frame that failed may have left after `end`."""
        os.ftruncate(self._fd, end)

    def release(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


Segment = Union[MappedSegment, PlainSegment]


def create_segment(folder: Path, number: int, size: int) -> Segment:
    """A new segment with room for `size` bytes, seal included; readers ignore it until it begins. Raises `OSError`."""
    path = segment_path(folder, number)
    try:
        fd = os.open(path, CREATE, 0o666)
    except FileExistsError:
        if has_begun(path):
            raise
        path.unlink()  # made ahead of time by a writer that died
        fd = os.open(path, CREATE, 0o666)
    try:
        return _open_best(number, size, fd)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def seal_file(path: Path, offset: int, sequence: int) -> None:
    """End a segment that its writer left behind: cut what is torn after `offset`, seal it there."""
    fd = os.open(path, WRITE)
    try:
        os.ftruncate(fd, offset)
        write_at(fd, _WORD.pack(seal_word(sequence), sequence), offset)
    finally:
        os.close(fd)


def _open_best(number: int, size: int, fd: int) -> Segment:
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
