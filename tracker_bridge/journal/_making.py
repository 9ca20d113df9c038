"""Making the file of a segment, of the best kind that its file system knows: mapped, spooled, or plain."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tracker_bridge.journal._files import CREATE, has_begun, segment_path
from tracker_bridge.journal._segment import MappedSegment, PlainSegment, Segment, allocate, can_map
from tracker_bridge.journal._spool import spooled


def create_segment(folder: Path, number: int, size: int, least: int, *, spools: bool) -> Segment:
    """A new segment with room for `size` bytes, seal included; readers ignore it until it begins. Raises `OSError`.

    One that is spooled may be smaller, but has `least`; `spools`: somebody copies them.
    """
    path = segment_path(folder, number)
    try:
        fd = os.open(path, CREATE, 0o666)
    except FileExistsError:
        if has_begun(path):
            raise
        path.unlink()  # made ahead of time by a writer that died
        fd = os.open(path, CREATE, 0o666)
    try:
        return _best(folder, number, size, least, spools, fd)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _best(folder: Path, number: int, size: int, least: int, spools: bool, fd: int) -> Segment:
    if not can_map():
        return PlainSegment(number, size, fd)
    os.ftruncate(fd, size)
    try:
        segment = MappedSegment(number, size, fd)
    except (OSError, ValueError):
        os.ftruncate(fd, 0)
    else:
        try:
            allocate(fd, size)
        except BaseException:
            segment.unmap()
            raise
        return segment
    if spools:
        with contextlib.suppress(OSError, ValueError):
            return spooled(folder, number, size, least, fd)
        os.ftruncate(fd, 0)
    return PlainSegment(number, size, fd)
