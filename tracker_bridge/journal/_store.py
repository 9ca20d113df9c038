"""The files of a journal that is being written: making the next segment, putting the last one away, keeping the limit.

All of it may wait for the disk, so it runs in the preparer's thread. Everything may raise `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tracker_bridge.journal._files import has_begun, read_header, segment_numbers, segment_path
from tracker_bridge.journal._segment import Segment, create_segment

WhenFull = Literal["drop_oldest", "drop_newest"]

BLOCK = 4096
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_GROWTH = 4


class NoRoomError(Exception):
    """`max_disk` is reached and nothing may be deleted."""


class SegmentStore:
    """The segments of one journal and what they take on disk. Used by one thread at a time."""

    def __init__(
        self, folder: Path, max_disk: int, when_full: WhenFull, delivered: Callable[[], int | None] | None
    ) -> None:
        self._folder = folder
        self._max_disk = max_disk
        self._when_full = when_full
        self._delivered = delivered
        self._held = {
            number: _blocks(segment_path(folder, number).stat().st_size) for number in segment_numbers(folder)
        }

    def make(self, number: int, size: int, least: int, keep: int) -> Segment:
        """A segment of `size` bytes that has not begun; smaller where the disk has no more, but at least `least`.

        Segments before `keep` may be deleted for it.
        Raises `NoRoomError`, `OSError`.
        """
        while True:
            self._make_room(size, keep)
            try:
                self._folder.mkdir(exist_ok=True)  # someone may have removed it
                segment = create_segment(self._folder, number, size)
            except OSError as error:
                if error.errno not in DISK_FULL or size <= least:
                    raise
                size = max(size // _GROWTH & -BLOCK, least)
            else:
                self._held[number] = _blocks(size)
                return segment

    def retire(self, segment: Segment, end: int) -> None:
        """Give back what is unused of a segment that is sealed, and let go of it."""
        # A segment that stays longer than its seal is whole all the same.
        with contextlib.suppress(OSError):
            segment.cut(end)
            self._held[segment.number] = _blocks(end)
        with contextlib.suppress(OSError):
            segment.release()

    def discard(self, segment: Segment) -> None:
        """Remove a segment that never began."""
        with contextlib.suppress(OSError):
            segment.release()
        # Another writer may have taken over while this disk was slow, and its segment of that number may have begun.
        path = segment_path(self._folder, segment.number)
        with contextlib.suppress(OSError):
            if not has_begun(path):
                path.unlink(missing_ok=True)
        self._held.pop(segment.number, None)

    def _make_room(self, size: int, keep: int) -> None:
        """Delete the oldest segments before `keep` until `size` more bytes fit. Raises `NoRoomError`."""
        total = sum(self._held.values())
        if total + size <= self._max_disk:
            return
        delivered = self._ask_delivered() if self._when_full == "drop_newest" else None
        for number in sorted(self._held):
            if number >= keep or (self._when_full == "drop_newest" and not self._is_delivered(number, delivered)):
                break
            segment_path(self._folder, number).unlink(missing_ok=True)
            total -= self._held.pop(number)
            if total + size <= self._max_disk:
                return
        raise NoRoomError

    def _ask_delivered(self) -> int | None:
        if self._delivered is None:
            return None
        try:
            return self._delivered()
        except Exception:  # unknown, then; a state file that cannot be read must not end the thread
            return None

    def _is_delivered(self, number: int, delivered: int | None) -> bool:
        following = read_header(segment_path(self._folder, number + 1))
        return delivered is not None and following is not None and following.first <= delivered


def _blocks(size: int) -> int:
    """What a file of `size` bytes takes on disk."""
    return -(-size // BLOCK) * BLOCK


def sync_path(path: Path, flags: int) -> None:
    """Bring a file or folder to the disk itself; one that is gone is fine."""
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:  # deleted to stay within `max_disk`
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
