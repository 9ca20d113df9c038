"""Appending to a journal: the only thing that the training process does with it.

An append takes a lock and copies; files are made and put away by the preparer's thread. It never waits for a reader or
a tracker, for a hung disk half a second once, and never raises into the caller. What cannot be written is counted in
`dropped`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar, get_args

from tracker_bridge.journal._definitions import DEFINING_TAGS, Definitions
from tracker_bridge.journal._errors import JournalError
from tracker_bridge.journal._files import segment_numbers, segment_path
from tracker_bridge.journal._format import (
    HEADER_SIZE,
    PIECE,
    SEAL_SIZE,
    SegmentHeader,
    checksum,
    crc32,
    frame_size,
    run_digest,
)
from tracker_bridge.journal._lock import lock_journal
from tracker_bridge.journal._preparer import PatientPreparer, Preparer, Prepares, SlowDiskError
from tracker_bridge.journal._recovery import survey
from tracker_bridge.journal._segment import MappedSegment, PlainSegment, Segment, seal_file
from tracker_bridge.journal._store import BLOCK, DISK_FULL, NoRoomError, SegmentStore, WhenFull, sync_path
from tracker_bridge.journal._tail import Tail
from tracker_bridge.records import AnyRecord, Dropped, decode, encode

SMALLEST_SEGMENT = 256 << 10
_SMALLEST_IMPORTED = 16 << 10
"""For thousands of small runs at once: blocks that are given back cost more than those that are written."""
LARGEST_SEGMENT = 16 << 20
_GROWTH = 4
_ORDER_AFTER = 4
"""The next segment is made when a quarter of the current one is used."""
_SEGMENTS_WITHIN_LIMIT = 8
"""`max_disk` is kept by deleting whole segments, so at least this many fit in it."""
LARGEST_RECORD = 64 << 20
_SNAPSHOT_SHARE = 4
SMALLEST_LIMIT = 64 << 10
_UNLIMITED = 1 << 62

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
T = TypeVar("T")


_NO_VIEWS = (memoryview(b""), memoryview(b"").cast("Q"))


class _Left(NamedTuple):
    """The segment before the current one, until that has begun."""

    segment: Segment | None
    used: int


class JournalWriter:
    """The one writer of a journal. Make it with `create` or `recover`."""

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
        prepares: Callable[[SegmentStore], Prepares] = Preparer,
        smallest: int = SMALLEST_SEGMENT,
    ) -> None:
        self._dropped: dict[str, int] = {}
        self._folder = folder
        self._run = run_digest(run_id)
        self._lock_fd = lock_fd
        # Reentrant, because a signal handler may log while its thread is appending.
        self._lock = threading.RLock()
        # `limit` ends at the resident pages, or is 0: always the slow path.
        self._tail = Tail(sequence, self._lock)
        self._shortcut = self._tail.append
        self._number = number
        self._definitions = definitions
        self._max_disk = max_disk
        self._largest_segment = min(LARGEST_SEGMENT, max_disk // _SEGMENTS_WITHIN_LIMIT & -BLOCK)
        self._next_size = min(smallest, self._largest_segment)
        self._largest_frame = self._tail.largest = min(LARGEST_RECORD, max_disk // _SEGMENTS_WITHIN_LIMIT)
        self._segment: Segment | None = None
        self._plain: PlainSegment | None = None  # the current segment, where files cannot be mapped
        self._view, self._words = _NO_VIEWS
        self._left: _Left | None = None
        self._capacity = 0
        self._unreported: dict[str, int] = {}
        self._restate = False
        self._blocked_until = 0.0
        self._pause = _FIRST_PAUSE
        self._fault = ""
        self._ended = ""
        self._unsynced: list[int] = []
        # An append that a signal handler makes while it interrupts another one (None: a close) waits for that one.
        self._pending: list[bytes | None] = []
        try:
            self._preparer = prepares(SegmentStore(folder, max_disk, when_full, delivered))
            try:
                self._rotate(0)
            except NoRoomError:
                self._block("max_disk")
            except BaseException:
                self._preparer.stop()
                raise
        except BaseException:
            self._ended = "closed"
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
        `JournalError` if there is a journal already, `WriterBusyError`, `OSError`, `ValueError`.
        """
        return cls._begin_new(folder, run_id, max_disk, when_full, delivered, Preparer, SMALLEST_SEGMENT)

    @classmethod
    def create_patient(cls, folder: str | os.PathLike[str], run_id: str) -> JournalWriter:
        """Begin a journal without a limit whose appends may wait for the disk, in the caller's thread: for an import.

        Raises as `create`.
        """
        return cls._begin_new(folder, run_id, _UNLIMITED, "drop_newest", None, PatientPreparer, _SMALLEST_IMPORTED)

    @classmethod
    def _begin_new(
        cls,
        folder: str | os.PathLike[str],
        run_id: str,
        max_disk: int,
        when_full: WhenFull,
        delivered: Callable[[], int | None] | None,
        prepares: Callable[[SegmentStore], Prepares],
        smallest: int,
    ) -> JournalWriter:
        folder = _prepare(folder, max_disk, when_full)
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
            prepares=prepares,
            smallest=smallest,
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
        folder = _prepare(folder, max_disk, when_full)
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
    def dropped(self) -> dict[str, int]:
        """What could not be appended, by reason.

        `disk_full`, `io_error`, `slow_disk`, `max_disk`, `too_large`, `forked_child`, `closed`; also `sync_failed` and
        `snapshot_too_large`, which lose no record.
        """
        with self._lock:
            self._count_refused()
            return self._dropped

    @property
    def tail(self) -> Tail:
        """Where the next record goes, for who has a shortcut of its own to it."""
        return self._tail

    @property
    def sequence(self) -> int:
        """The sequence that the next record gets."""
        return self._tail.sequence

    def append(self, record: AnyRecord) -> int | None:
        """Append one record; its sequence, or None if it was dropped (and counted).

        In a signal handler that interrupts an append of the same thread: None, and it is written right after that one.
        Raises `TypeError` or `OverflowError` only, on a value that a record may not hold.
        """
        return self.append_encoded(encode(record))

    def append_encoded(self, payload: bytes) -> int | None:
        """`append` for a record that `records.encode` has made bytes of."""
        if self._shortcut is not None and (written := self._shortcut(payload)) != -1:
            return written if written >= 0 else None
        tail = self._tail
        length = len(payload)
        # As `checksum` does for a short one, in line: a call costs half as much as the sum.
        crc = crc32(payload) if length <= PIECE else checksum(payload)
        with self._lock:
            if tail.busy:
                self._pending.append(payload)
                return None
            tail.busy = True
            try:
                start = tail.used
                end = start + ((length + 23) & -8)
                if end > tail.limit or payload[1] in DEFINING_TAGS:
                    return self._append_slowly(payload, crc)
                if self._plain is not None:
                    return self._append_plain(self._plain, payload, crc)
                sequence = tail.sequence
                try:
                    tail.used = end
                    tail.sequence = sequence + 1
                    body = start + 16
                    self._view[body : body + length] = payload
                    word = start >> 3
                    self._words[word + 1] = sequence
                    # Last and in one store: from here on it is a record. Inline, for a call costs as much as the rest.
                    self._words[word] = length | (crc ^ (sequence & 0xFFFFFFFF) ^ (sequence >> 32)) << 32
                except BaseException:
                    # Ctrl-C between two of these lines (Python 3.10) must leave no hole and use no number twice.
                    tail.used = end
                    tail.sequence = sequence + 1
                    self._segment.put(start, payload, crc, sequence)  # type: ignore[union-attr]
                    raise
                return sequence
            finally:
                tail.busy = False
                if self._pending:
                    self._do_pending()

    def sync(self) -> None:
        """Bring everything to the disk itself (a power cut then loses nothing). May take long; stops no append.

        A fault is counted as `sync_failed`, not raised.
        """
        with self._lock:
            if self._ended:
                return
            unsynced, self._unsynced = self._unsynced, []
            number = self._number
        try:
            for sealed in (*unsynced, number):
                sync_path(segment_path(self._folder, sealed), os.O_RDWR)
            sync_path(self._folder, os.O_RDONLY)
        except OSError:
            self._count("sync_failed")

    def close(self) -> None:
        """Seal the journal and give back what is unused on disk. What is appended afterwards is dropped."""
        with self._lock:
            if self._tail.busy:
                self._pending.append(None)
            elif not self._ended:
                self._tail.busy = True  # so that neither a signal handler nor a shortcut sees it half closed
                try:
                    self._close()
                finally:
                    self._tail.busy = False
                    if self._pending:
                        self._do_pending()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        # A writer that was forgotten must not keep its thread and its lock. (There is no lock if opening failed.)
        # When the interpreter ends both are lost anyway, and the thread does not run any more.
        if "_preparer" in self.__dict__ and not sys.is_finalizing():
            self.close()

    def _close(self) -> None:
        self._tail.refuses_until = 0.0
        self._count_refused()
        if self._unreported or self._restate:
            with contextlib.suppress(OSError, NoRoomError, SlowDiskError):
                self._settle(0)
        self._tail.limit = 0
        self._ended = "closed"
        self._tail.aim(None, -1)
        segment, self._segment = self._segment, None
        if segment is not None:
            if self._left is not None:
                with contextlib.suppress(OSError):
                    self._begin(segment)
            self._end(segment, self._tail.used)
        self._view, self._words = _NO_VIEWS
        self._preparer.stop()
        os.close(self._lock_fd)
        _writers.discard(self)

    def _do_pending(self) -> None:
        """What a signal handler asked for while it interrupted an append."""
        while self._pending:
            payload = self._pending.pop(0)
            if payload is None:
                self.close()
            else:
                self.append_encoded(payload)

    def _append_plain(self, segment: PlainSegment, payload: bytes, crc: int) -> int | None:
        """The fast path of a file that is not mapped: one write. The slow path writes the same place after a fault."""
        try:
            return self._place(segment, payload, crc, self._tail.used + frame_size(len(payload)))
        except OSError:
            return self._append_slowly(payload, crc)

    def _place(self, segment: Segment, payload: bytes, crc: int, end: int) -> int:
        """Write a frame at the end and count it; its sequence. Raises `OSError`, and then it is not counted."""
        tail = self._tail
        start, sequence = tail.used, tail.sequence
        try:
            segment.put(start, payload, crc, sequence)
            # No call from here on: Ctrl-C between a record that readers see and its count would use both twice.
            tail.used = end
            tail.sequence = sequence + 1
        except OSError:
            raise
        except BaseException:
            tail.used = end
            tail.sequence = sequence + 1
            with contextlib.suppress(OSError):
                segment.put(start, payload, crc, sequence)  # see `append_encoded`
            raise
        return sequence

    def _append_slowly(self, payload: bytes, crc: int) -> int | None:
        self._count_refused()
        if self._ended:
            self._count(self._ended)
            return None
        size = frame_size(len(payload))
        if size > self._largest_frame:
            self._drop("too_large")
            if time.monotonic() >= self._blocked_until:
                self._try(lambda: self._settle(0))
            return None
        sequence: int | None = None
        if time.monotonic() >= self._blocked_until:
            sequence = self._try(lambda: self._write(payload, crc, size))
        if payload[1] in DEFINING_TAGS:
            # Only now, so that a snapshot which opens a segment for it does not say the same. A dropped definition
            # reaches readers all the same, with the next snapshot.
            self._definitions.apply(decode(payload))
            self._restate = self._restate or sequence is None
        if sequence is None:
            self._drop(self._fault)
        return sequence

    def _write(self, payload: bytes, crc: int, size: int) -> int:
        self._settle(size)
        return self._put(payload, crc)

    def _try(self, action: Callable[[], T]) -> T | None:
        """The action's result; None after a fault, and then nothing is tried again for a while."""
        try:
            result = action()
        except NoRoomError:
            self._block("max_disk")
        except SlowDiskError:
            self._block("slow_disk")
        except OSError as error:
            self._block("disk_full" if error.errno in DISK_FULL else "io_error")
        else:
            self._pause = _FIRST_PAUSE
            self._tail.refuses_until = self._blocked_until = 0.0
            return result
        return None

    def _put(self, payload: bytes, crc: int) -> int:
        segment = self._segment
        assert segment is not None
        if self._left is not None:
            self._begin(segment)
        end = self._tail.used + frame_size(len(payload))
        early = self._capacity // _ORDER_AFTER
        if end > early:
            self._preparer.order(self._number + 1, self._next_size, BLOCK, self._number)
        resident = segment.populate(end) if isinstance(segment, MappedSegment) else self._capacity
        self._tail.limit = min(resident, self._capacity if end > early else early)
        return self._place(segment, payload, crc, end)

    def _begin(self, segment: Segment) -> None:
        """Open the new segment to readers and end the one before it. Repeated if it is interrupted."""
        segment.begin(SegmentHeader(self._number, self._tail.sequence, self._run))
        if self._left is not None and self._left.segment is not None:
            self._end(self._left.segment, self._left.used)
        self._left = None

    def _end(self, segment: Segment, used: int) -> None:
        # A segment without its seal is whole all the same: the next one's header says where it ends.
        with contextlib.suppress(OSError, ValueError):
            segment.seal(used, self._tail.sequence)
        self._unsynced.append(segment.number)
        self._preparer.retire(segment, used + SEAL_SIZE)

    def _settle(self, size: int) -> None:
        """Make room for a frame of `size`, and first write what is owed: dropped definitions and counts."""
        now = time.time_ns()
        owed: list[bytes] = []
        if self._restate and (snapshot := self._snapshot(now)):
            owed.append(snapshot)
        if self._unreported:
            owed.append(encode(Dropped(now, dict(self._unreported))))
        need = size + sum(frame_size(len(payload)) for payload in owed)
        if self._segment is None or self._tail.used + need > self._capacity:
            self._rotate(need)
            owed = owed[-1:] if self._unreported else []  # the new segment has begun with the snapshot
        for payload in owed:
            self._put(payload, checksum(payload))
        self._restate = False
        self._unreported = {}

    def _rotate(self, need: int) -> None:
        """Go on in a new segment with room for `need` bytes after its snapshot."""
        snapshot = self._snapshot(time.time_ns())
        overhead = HEADER_SIZE + SEAL_SIZE + (frame_size(len(snapshot)) if snapshot else 0)
        least = -(-(overhead + need) // BLOCK) * BLOCK
        keep = self._number + 1 if self._segment is None else self._number
        segment = self._preparer.take(self._number + 1, max(self._next_size, least), least, keep)
        views = (segment.view, segment.words) if isinstance(segment, MappedSegment) else _NO_VIEWS
        plain = segment if isinstance(segment, PlainSegment) else None
        left = _Left(self._segment, self._tail.used)
        self._tail.limit = 0
        if isinstance(segment, MappedSegment):
            self._tail.aim(segment.view, -1)
        else:
            self._tail.aim(None, segment.fileno())
        # No call between these lines, so that a signal handler finds all or nothing changed.
        self._left = left
        self._segment = segment
        self._plain = plain
        self._view, self._words = views
        self._number = segment.number
        self._tail.used = HEADER_SIZE
        self._capacity = segment.size - SEAL_SIZE
        self._restate = snapshot is not None
        self._next_size = min(self._next_size * _GROWTH, self._largest_segment)
        if snapshot is None:
            self._begin(segment)
        else:
            self._put(snapshot, checksum(snapshot))
            self._restate = False

    def _snapshot(self, now: int) -> bytes | None:
        snapshot = self._definitions.snapshot(now)
        if snapshot is None:
            return None
        payload = encode(snapshot)
        if frame_size(len(payload)) > self._max_disk // _SNAPSHOT_SHARE:
            self._count("snapshot_too_large")
            return None
        return payload

    def _block(self, reason: str) -> None:
        self._count_refused()
        self._fault = reason
        self._tail.limit = 0
        self._tail.refuses_until = self._blocked_until = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _drop(self, reason: str, count: int = 1) -> None:
        self._tail.limit = 0
        self._unreported[reason] = self._unreported.get(reason, 0) + count
        self._count(reason, count)

    def _count_refused(self) -> None:
        """What the shortcut has dropped, under the fault for which it did."""
        if refused := self._tail.take_refused():
            self._drop(self._fault, refused)

    def _count(self, reason: str, count: int = 1) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + count

    def _after_fork(self) -> None:
        """In the child: the journal belongs to the parent, and a lock that some thread held will never be released."""
        self._lock = self._tail.lock = threading.RLock()
        self._tail.busy = False
        self._pending = []
        self._tail.limit = 0
        self._tail.refuses_until = 0.0
        self._ended = self._ended or "forked_child"
        # Closed, not unlocked: the parent's descriptor keeps the lock, and a child that outlives it must not.
        os.close(self._lock_fd)


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in _writers:
        writer._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _prepare(folder: str | os.PathLike[str], max_disk: int, when_full: str) -> Path:
    if max_disk < SMALLEST_LIMIT:
        raise ValueError(f"max_disk is {max_disk} bytes; it must be at least {SMALLEST_LIMIT} (64 KiB)")
    if when_full not in get_args(WhenFull):
        raise ValueError(f"when_full is {when_full!r}; it must be one of {', '.join(get_args(WhenFull))}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
