"""Appending to a journal: the only thing that the training process does with it.

May take a lock for microseconds and fault in pages; never waits for a reader, a disk that is slow to sync, or a
tracker, and never raises into the caller once it is open. What cannot be written is counted in `dropped`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

from tracker_bridge.journal._definitions import DEFINING_TAGS, Definitions
from tracker_bridge.journal._errors import JournalError
from tracker_bridge.journal._format import (
    HEADER_SIZE,
    SEAL_SIZE,
    SegmentHeader,
    checksum,
    frame_size,
    run_digest,
    segment_numbers,
    segment_path,
    unpack_header,
)
from tracker_bridge.journal._lock import lock_journal
from tracker_bridge.journal._recovery import survey
from tracker_bridge.journal._segment import MappedSegment, PlainSegment, create_segment, seal_file
from tracker_bridge.records import AnyRecord, Dropped, decode, encode

WhenFull = Literal["drop_oldest", "drop_newest"]

SMALLEST_SEGMENT = 256 << 10
LARGEST_SEGMENT = 16 << 20
_GROWTH = 4
_SEGMENTS_WITHIN_LIMIT = 8
"""`max_disk` is kept by deleting whole segments, so at least this many fit in it."""
LARGEST_RECORD = 64 << 20

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _NoRoomError(Exception):
    """`max_disk` is reached and nothing may be deleted."""


class JournalWriter:
    """The one writer of a journal. Make it with `create` or `recover`.

    `dropped` counts what could not be appended, by reason: `disk_full`, `io_error`, `max_disk`, `too_large`,
    `forked_child`, `closed`.
    """

    dropped: dict[str, int]

    def __init__(
        self,
        folder: Path,
        run_id: str,
        lock_fd: int,
        *,
        sequence: int,
        number: int,
        definitions: Definitions,
        max_disk: int,
        when_full: WhenFull,
        delivered: Callable[[], int | None] | None,
    ) -> None:
        self.dropped = {}
        self._folder = folder
        self._run = run_digest(run_id)
        self._lock_fd = lock_fd
        self._sequence = sequence
        self._number = number
        self._definitions = definitions
        self._max_disk = max_disk
        self._when_full = when_full
        self._delivered = delivered
        # Reentrant, because a signal handler may log while its thread is appending.
        self._lock = threading.RLock()
        self._largest_segment = max(4096, min(LARGEST_SEGMENT, max_disk // _SEGMENTS_WITHIN_LIMIT & -4096))
        self._next_size = min(SMALLEST_SEGMENT, self._largest_segment)
        self._largest_frame = min(LARGEST_RECORD, max(self._largest_segment, max_disk // _SEGMENTS_WITHIN_LIMIT))
        self._segment: MappedSegment | PlainSegment | None = None
        self._used = 0
        self._capacity = 0
        self._limit = 0  # where the fast path must stop: end of resident pages, or 0 = always the slow path
        self._unreported: dict[str, int] = {}
        self._restate = False
        self._blocked_until = 0.0
        self._pause = _FIRST_PAUSE
        self._fault = ""
        self._ended = ""
        try:
            self._rotate(0)
        except _NoRoomError:
            self._block("max_disk")
        except BaseException:
            os.close(lock_fd)
            raise
        _writers.add(self)

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        run_id: str,
        *,
        max_disk: int = 2 << 30,
        when_full: WhenFull = "drop_oldest",
        delivered: Callable[[], int | None] | None = None,
    ) -> JournalWriter:
        """Begin a journal in `folder`, which is made if need be.

        `max_disk` is in bytes. `delivered` gives the sequence up to which every backend has delivered (exclusive), or
        None if that is unknown; it is asked only when the disk limit is reached with `drop_newest`. Raises
        `JournalError` if there is a journal already, `WriterBusyError`, `OSError`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        fd = lock_journal(folder)
        if segment_numbers(folder):
            os.close(fd)
            raise JournalError(f"{folder} already holds a journal; continue it with JournalWriter.recover")
        return cls(
            folder,
            run_id,
            fd,
            sequence=0,
            number=0,
            definitions=Definitions(),
            max_disk=max_disk,
            when_full=when_full,
            delivered=delivered,
        )

    @classmethod
    def recover(
        cls,
        folder: str | os.PathLike[str],
        run_id: str,
        *,
        max_disk: int = 2 << 30,
        when_full: WhenFull = "drop_oldest",
        delivered: Callable[[], int | None] | None = None,
        first_sequence: int = 0,
    ) -> JournalWriter:
        """Continue the journal in `folder` in a new segment, whether its writer closed it, died or lost power.

        The next record gets the sequence after the last whole one, and at least `first_sequence`: pass the largest
        cursor, so that no number is used twice when a power cut took records that were delivered already. An empty
        folder begins a journal. Raises `JournalError` if it belongs to another run, `WriterBusyError`, `OSError`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        fd = lock_journal(folder)
        try:
            found = survey(folder, run_digest(run_id))
            if found.open_segment is not None:
                seal_file(segment_path(folder, found.number), found.open_segment, found.sequence)
        except BaseException:
            os.close(fd)
            raise
        return cls(
            folder,
            run_id,
            fd,
            sequence=max(found.sequence, first_sequence),
            number=found.number,
            definitions=found.definitions,
            max_disk=max_disk,
            when_full=when_full,
            delivered=delivered,
        )

    @property
    def sequence(self) -> int:
        """The sequence that the next record gets."""
        return self._sequence

    def append(self, record: AnyRecord) -> int | None:
        """Append one record; its sequence, or None if it was dropped (and counted).

        Raises `TypeError` or `OverflowError` only, on a value that a record may not hold.
        """
        return self.append_encoded(encode(record))

    def append_encoded(self, payload: bytes) -> int | None:
        """`append` for a record that `records.encode` has made bytes of."""
        length = len(payload)
        crc = checksum(payload)
        if payload[1] in DEFINING_TAGS:
            return self._append_definition(payload, crc)
        with self._lock:
            start = self._used
            end = start + ((length + 23) & -8)
            if end > self._limit:
                return self._append_slowly(payload, crc)
            # From here to the last store there is no call, so no signal handler and no other thread can get between
            # (from Python 3.11 on); the sequence is taken first so that even then nobody else writes here.
            sequence = self._sequence
            self._used = end
            self._sequence = sequence + 1
            try:
                self._view[start + 16 : start + 16 + length] = payload
                self._words[(start >> 3) + 1] = sequence
                self._words[start >> 3] = length | (crc ^ (sequence & 0xFFFFFFFF) ^ (sequence >> 32)) << 32
            except BaseException:
                self._mapped.put(start, payload, crc, sequence)
                raise
            return sequence

    def sync(self) -> None:
        """Bring everything to the disk itself (a power cut then loses nothing). A fault is counted, not raised."""
        with self._lock:
            if self._segment is None:
                return
            try:
                self._segment.sync()
                _sync_folder(self._folder)
            except OSError:
                self._count("sync_failed")

    def close(self) -> None:
        """Seal the journal and give back what is unused on disk. What is appended afterwards is dropped."""
        with self._lock:
            if self._ended:
                return
            if self._unreported or self._restate:
                self._blocked_until = 0.0
                with contextlib.suppress(OSError, _NoRoomError):
                    self._settle(0)
            self._limit = 0
            self._ended = "closed"
            segment, self._segment = self._segment, None
            if segment is not None:
                with contextlib.suppress(OSError):
                    segment.seal(self._used, self._sequence)
                with contextlib.suppress(OSError):
                    segment.release()
            self._forget_views()
            os.close(self._lock_fd)
            _writers.discard(self)

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _append_definition(self, payload: bytes, crc: int) -> int | None:
        with self._lock:
            if self._ended or frame_size(len(payload)) > self._largest_frame:
                return self._append_slowly(payload, crc)
            record = decode(payload)
            sequence = self._append_slowly(payload, crc)
            # After the record, so that a new segment's snapshot does not hold what the next record says again; and
            # also when it was dropped: the next snapshot then brings it.
            self._definitions.apply(record)
            if sequence is None:
                self._restate = True
            return sequence

    def _append_slowly(self, payload: bytes, crc: int) -> int | None:
        if self._ended:
            self._count(self._ended)
            return None
        size = frame_size(len(payload))
        if size > self._largest_frame:
            self._drop("too_large")
            size = 0
        elif time.monotonic() < self._blocked_until:
            self._drop(self._fault)
            return None
        try:
            self._settle(size)
            if size == 0:
                return None
            return self._put(payload, crc)
        except _NoRoomError:
            self._block("max_disk")
        except OSError as error:
            self._block("disk_full" if error.errno in _DISK_FULL else "io_error")
        if size:
            self._drop(self._fault)
        return None

    def _put(self, payload: bytes, crc: int) -> int:
        assert self._segment is not None
        start, sequence = self._used, self._sequence
        end = start + frame_size(len(payload))
        if isinstance(self._segment, MappedSegment):
            self._limit = min(self._segment.populate(end), self._capacity)
        self._segment.put(start, payload, crc, sequence)
        self._used = end
        self._sequence = sequence + 1
        return sequence

    def _settle(self, size: int) -> None:
        """Make room for a frame of `size`, and first write what is owed: dropped definitions and counts."""
        now = time.time_ns()
        owed: list[bytes] = []
        if self._restate and (snapshot := self._snapshot(now)):
            owed.append(snapshot)
        if self._unreported:
            owed.append(encode(Dropped(now, dict(self._unreported))))
        need = size + sum(frame_size(len(payload)) for payload in owed)
        if self._segment is None or self._used + need > self._capacity:
            self._rotate(need)
            owed = owed[-1:] if self._unreported else []  # the new segment has begun with the snapshot
        for payload in owed:
            self._put(payload, checksum(payload))
        self._restate = False
        self._unreported = {}
        self._pause = _FIRST_PAUSE
        self._blocked_until = 0.0

    def _rotate(self, need: int) -> None:
        """Go on in a new segment with room for `need` bytes after its snapshot."""
        snapshot = self._snapshot(time.time_ns())
        overhead = HEADER_SIZE + SEAL_SIZE + (frame_size(len(snapshot)) if snapshot else 0)
        size = max(self._next_size, -(-(overhead + need) // 4096) * 4096)
        self._make_room(size)
        self._folder.mkdir(exist_ok=True)
        header = SegmentHeader(self._number + 1, self._sequence, self._run)
        segment = create_segment(self._folder, header, size)
        old, end = self._segment, self._used
        self._limit = 0
        self._segment = segment
        self._number = segment.number
        self._used = HEADER_SIZE
        self._capacity = size - SEAL_SIZE
        self._next_size = min(self._next_size * _GROWTH, self._largest_segment)
        self._forget_views()
        if isinstance(segment, MappedSegment):
            self._mapped, self._view, self._words = segment, segment.view, segment.words
        if old is not None:
            # The new segment's header says where the old one ends, should this fail.
            with contextlib.suppress(OSError):
                old.seal(end, self._sequence)
            with contextlib.suppress(OSError):
                old.release()
        if snapshot:
            self._put(snapshot, checksum(snapshot))

    def _make_room(self, size: int) -> None:
        """Delete the oldest segments until `size` more bytes fit. Raises `_NoRoomError`."""
        held = [(number, _size_of(segment_path(self._folder, number))) for number in segment_numbers(self._folder)]
        total = sum(held_size for _, held_size in held)
        if total + size <= self._max_disk:
            return
        delivered = self._delivered() if self._when_full == "drop_newest" and self._delivered is not None else None
        for number, held_size in held:
            if number == self._number and self._segment is not None:
                break
            if self._when_full == "drop_newest" and not self._is_delivered(number, delivered):
                break
            segment_path(self._folder, number).unlink(missing_ok=True)
            total -= held_size
            if total + size <= self._max_disk:
                return
        raise _NoRoomError

    def _is_delivered(self, number: int, delivered: int | None) -> bool:
        if delivered is None:
            return False
        following = _first_of(self._folder, number + 1)
        return following is not None and following <= delivered

    def _snapshot(self, now: int) -> bytes | None:
        snapshot = self._definitions.snapshot(now)
        if snapshot is None:
            return None
        payload = encode(snapshot)
        return payload if frame_size(len(payload)) <= self._largest_frame else None

    def _block(self, reason: str) -> None:
        self._fault = reason
        self._limit = 0
        self._blocked_until = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _drop(self, reason: str) -> None:
        self._limit = 0
        self._unreported[reason] = self._unreported.get(reason, 0) + 1
        self._count(reason)

    def _count(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def _forget_views(self) -> None:
        for name in ("_mapped", "_view", "_words"):
            self.__dict__.pop(name, None)

    def _after_fork(self) -> None:
        """In the child: the journal belongs to the parent, and a lock that some thread held will never be released."""
        self._lock = threading.RLock()
        self._limit = 0
        self._ended = "forked_child"
        # Closed, not unlocked: the parent's descriptor keeps the lock, and a child that outlives it must not.
        with contextlib.suppress(OSError):
            os.close(self._lock_fd)


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in _writers:
        writer._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _first_of(folder: Path, number: int) -> int | None:
    try:
        with segment_path(folder, number).open("rb") as file:
            header = unpack_header(file.read(HEADER_SIZE))
    except OSError:
        return None
    return header.first if header else None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
