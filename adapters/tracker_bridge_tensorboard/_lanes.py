"""The event files of one run, arranged so that TensorBoard's server never deletes a point.

Its reader lets a record preempt all records of the tag with a larger step ("a restart"), see
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/data/server/reservoir.rs. So each directory of event
files, a lane, takes steps in order only; an event that would go back is put into the first of the sub-runs `late`,
`late-2`, ... where it does not. Only files and steps are known here, not what an event means.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracker_bridge_tensorboard._encoding import is_version, version_event
from tracker_bridge_tensorboard._framing import frame, read_frames
from tracker_bridge_tensorboard._location import SERIES, event_file, next_stamp, part_files
from tracker_bridge_tensorboard._memory import LaneMemory

MOST_LATE_LANES = 64
"""Points that go back in more than this many interleaved sequences are refused: each needs a sub-run of its own."""

_NEVER = np.iinfo(np.int64).min

Numbers = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Event:
    """An encoded event: the numbers of its tags, its step. `stepless`: its form with step 0, if it chose the step."""

    numbers: Numbers
    step: int
    payload: bytes
    late: bool = False
    stepless: bytes | None = None

    @property
    def key(self) -> bytes:
        """What is equal whenever the same item comes again."""
        return self.stepless or self.payload


class Lane:
    """One directory of event files. Events are staged, and written together by `commit`."""

    def __init__(self, path: Path, steps: npt.NDArray[np.int64]) -> None:
        self.directory = path.parent
        self.steps = steps
        self._path = path
        self._staged: list[bytes] = []
        self._steps_before = steps
        self._fd: int | None = None
        self._size = 0

    def begin(self) -> None:
        """Start a transaction: `rollback` returns to here."""
        self._staged.clear()
        self._steps_before = self.steps.copy()

    def takes(self, numbers: Numbers, step: int) -> bool:
        """Whether no tag of `numbers` has a larger step here."""
        return bool((self.steps[numbers] <= step).all())

    def stage(self, payload: bytes) -> None:
        """Add an event to the transaction."""
        self._staged.append(frame(payload))

    def next_step(self, number: int) -> int:
        """The step after the last one of a tag; 0 for the first."""
        last = int(self.steps[number])
        return 0 if last == _NEVER else last + 1

    def open(self, time_ns: int) -> None:
        """Make the event file, if there is none yet (or somebody removed it). Raises `OSError`."""
        if self._fd is not None and self._path.exists():
            return
        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = 0
        try:
            self._write(frame(version_event(time_ns)))
        except OSError:
            self._remove()
            raise

    def commit(self, time_ns: int) -> None:
        """Write what is staged. Raises `OSError`; the file then ends where it ended before."""
        if self._staged:
            self.open(time_ns)
            self._write(b"".join(self._staged))

    def committed(self) -> int:
        """Size of the event file, to go back to with `rollback`."""
        return self._size

    def rollback(self, size: int) -> None:
        """Undo the transaction."""
        self._staged.clear()
        # Tags that were met first in this transaction keep their numbers.
        self.steps[: len(self._steps_before)] = self._steps_before
        self.steps[len(self._steps_before) :] = _NEVER
        if size == 0:
            self._remove()
        elif self._fd is not None:
            self._cut(size)

    def close(self) -> None:
        """Close the event file."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self._size = 0

    def _remove(self) -> None:
        # A file without its first event is no event file.
        if self._fd is not None:
            self.close()
            self._path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._cut(self._size)
            raise
        self._size += len(data)

    def _cut(self, size: int) -> None:
        # A record torn in the middle of a file would end the file for every reader.
        assert self._fd is not None
        os.ftruncate(self._fd, size)
        self._size = size


class Lanes:
    """All lanes of a run, the numbers of its tags, and what an interrupted delivery already wrote.

    `stamp` goes into the names of the files made from now on; `done` has the digests of events that may come again.
    """

    def __init__(
        self,
        root: Path,
        stamp: int,
        suffix: str,
        tags: Sequence[str],
        known: Sequence[LaneMemory],
        done: Sequence[bytes],
    ) -> None:
        self._root = root
        self._stamp = stamp
        self._suffix = suffix
        self._numbers = {tag: number for number, tag in enumerate(tags)}
        self._lanes: list[Lane] = []
        self._lanes = [self._restored(memory) for memory in known] or [self._new_lane("")]
        self._sizes = {root / lane.directory / name: size for lane in known for name, size in lane.files.items()}
        self._written = _beyond(root, known, self._sizes)
        self._behind = bool(self._written)
        self._written.update(done)
        self._recognised: list[bytes] = []
        self._behind_before = self._behind
        self._begun: list[tuple[Lane, int]] = []

    @property
    def main(self) -> Lane:
        """The run's own directory."""
        return self._lanes[0]

    def number(self, tag: str) -> int:
        """The tag's index into every lane's `steps`."""
        number = self._numbers.get(tag)
        if number is None:
            number = self._numbers[tag] = len(self._numbers)
            if number >= len(self.main.steps):
                for lane in self._lanes:
                    lane.steps = np.concatenate([lane.steps, np.full(len(lane.steps) + 64, _NEVER)])
        return number

    def begin(self) -> None:
        """Start a transaction over all lanes."""
        for lane in self._lanes:
            lane.begin()
        self._begun = [(lane, lane.committed()) for lane in self._lanes]
        self._recognised.clear()
        self._behind_before = self._behind

    def put(self, event: Event) -> bool:
        """Stage an event where it hides nothing; False if there is no such place."""
        again = bool(self._written) and self._is_written(event)
        numbers, step = event.numbers, event.step
        lane = next((lane for lane in self._lanes[event.late :] if lane.takes(numbers, step)), None)
        if lane is None and not again:
            lane = self._add_late_lane()
        if lane is None:
            return again
        lane.steps[numbers] = step
        if not again:
            # Items come in order, so the first one that was not written yet is behind all that were.
            self._behind = False
            lane.stage(event.payload)
        return True

    def commit(self, time_ns: int) -> None:
        """Write what is staged in all lanes, or nothing. Raises `OSError`."""
        try:
            for lane in self._lanes:
                lane.commit(time_ns)
        except OSError:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Undo the transaction."""
        for lane, size in self._begun:
            lane.rollback(size)
        self._written.update(self._recognised)
        self._recognised.clear()
        self._behind = self._behind_before

    def remembered(self) -> tuple[list[str], list[LaneMemory]]:
        """The tags in the order of their numbers, and each lane's state, for `Memory`."""
        count = len(self._numbers)
        memories = [
            LaneMemory(
                str(lane.directory.relative_to(self._root)),
                self._remembered_sizes(lane),
                lane.steps[:count].tobytes(),
            )
            for lane in self._lanes
        ]
        return list(self._numbers), memories

    def _remembered_sizes(self, lane: Lane) -> dict[str, int]:
        sizes = {path: path.stat().st_size for path in part_files(lane.directory, SERIES)}
        if self._behind:
            # What an interrupted delivery wrote is still to come again: the next opening must find it as well.
            sizes = {path: size for path, size in self._sizes.items() if path in sizes}
        return {path.name: size for path, size in sizes.items()}

    def close(self) -> None:
        """Close all event files."""
        for lane in self._lanes:
            lane.close()

    def _add_late_lane(self) -> Lane | None:
        count = len(self._lanes)
        if count > MOST_LATE_LANES:
            return None
        lane = self._new_lane("late" if count == 1 else f"late-{count}")
        lane.begin()
        self._lanes.append(lane)
        self._begun.append((lane, 0))
        return lane

    def _new_lane(self, directory: str) -> Lane:
        size = len(self.main.steps) if self._lanes else max(64, len(self._numbers))
        return Lane(self._file(directory), np.full(size, _NEVER))

    def _restored(self, memory: LaneMemory) -> Lane:
        steps = np.full(max(64, len(self._numbers)), _NEVER)
        stored = np.frombuffer(memory.steps, dtype=np.int64)
        steps[: len(stored)] = stored
        return Lane(self._file(memory.directory), steps)

    def _file(self, directory: str) -> Path:
        folder = self._root / directory
        # The run's own directory may hold files of this stamp already: those that `_session` describes.
        stamp = next_stamp(folder, self._stamp) if folder != self._root else self._stamp
        return event_file(folder, stamp, SERIES, self._suffix)

    def _is_written(self, event: Event) -> bool:
        # The tail of a file has the event as it was written, the memory has its key.
        for key in map(digest, {event.payload, event.key}):
            if self._written[key]:
                self._written[key] -= 1
                self._recognised.append(key)
                return True
        return False


def digest(payload: bytes) -> bytes:
    """Recognises an event that is sent again: encoding is deterministic, so the same item gives the same bytes."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def _beyond(root: Path, known: Sequence[LaneMemory], sizes: Mapping[Path, int]) -> Counter[bytes]:
    """Digests of the events behind the remembered sizes: written, but perhaps sent again."""
    directories = {root, *(root / lane.directory for lane in known), *root.glob("late*")} if known else set()
    return Counter(
        digest(payload)
        for directory in sorted(directories)
        for path in part_files(directory, SERIES)
        if path.stat().st_size > sizes.get(path, 0)
        for payload in read_frames(path, sizes.get(path, 0))
        if not is_version(payload)
    )
