"""The journal and its cursors against a plain list, in every order that Hypothesis finds."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.journal.journals import RUN, disk_use
from tracker_bridge.journal import Definitions, Entry, Gap, JournalReader, JournalWriter, Position, _writer
from tracker_bridge.journal._tail import PythonTail
from tracker_bridge.records import AnyRecord, Metrics, Params, Snapshot


class JournalMachine(RuleBasedStateMachine):
    """`model` is what has been appended: model[i] is the record numbered i, None for one that the writer added."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "j"
        self.model: list[AnyRecord | None] = []
        self.params: dict[str, object] = {}
        self.damaged = False
        self.deleted = False
        self.acknowledged = Position()
        self.writer: JournalWriter | None = None
        self.readers: list[JournalReader] = []
        self.seen = [0, 0]

    @initialize(tail=st.sampled_from([_writer.Tail, PythonTail]))
    def begin(self, tail: type[PythonTail]) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_writer, "Tail", tail)
        self.writer = JournalWriter.create(self.folder, RUN, max_disk=64 << 10)
        self.readers = [JournalReader(self.folder), JournalReader(self.folder)]

    def teardown(self) -> None:
        for reader in self.readers:
            reader.close()
        if self.writer is not None:
            self.writer.close()
        shutil.rmtree(self.root)
        self.patch.undo()

    def _append(self, record: AnyRecord) -> None:
        assert self.writer is not None
        sequence = self.writer.append(record)
        assert sequence is not None, self.writer.dropped
        assert sequence >= len(self.model)
        self.model += [None] * (sequence - len(self.model))
        self.model.append(record)

    @precondition(lambda self: self.writer is not None)
    @rule(count=st.integers(1, 40), size=st.sampled_from([0, 10, 500, 3000]))
    def append(self, count: int, size: int) -> None:
        for _ in range(count):
            step = len(self.model)
            self._append(Metrics(step, step, {"x" * (size + 1): float(step)}))

    @precondition(lambda self: self.writer is not None)
    @rule(key=st.sampled_from("abc"), value=st.integers())
    def define(self, key: str, value: int) -> None:
        self._append(Params(0, {key: {"v": value % 1000}}))
        self.params[key] = {"v": value % 1000}

    def _check(self, items: list[Entry | Gap], expected: int) -> int:
        """Items follow each other from `expected` on and are what the model says; the number after them."""
        for item in items:
            assert item.sequence == expected
            if isinstance(item, Gap):
                assert item.count > 0
                assert (item.reason == "max_disk") or (self.damaged and item.reason == "corrupt")
                expected += item.count
                continue
            expected += 1
            if item.sequence < len(self.model) and self.model[item.sequence] is not None:
                assert item.record == self.model[item.sequence]
            else:
                assert isinstance(item.record, Snapshot)
        return expected

    @rule(index=st.integers(0, 1), batch=st.sampled_from([1, 3, 1000]))
    def follow(self, index: int, batch: int) -> None:
        reader = self.readers[index]
        self.seen[index] = self._check(reader.read(batch), self.seen[index])
        assert reader.position.sequence == self.seen[index]
        assert reader.end() >= self.seen[index]

    @rule()
    def acknowledge_and_restart(self) -> None:
        """A backend stores its cursor, dies, and goes on from there."""
        self.acknowledged = self.readers[0].position
        self.readers[0].close()
        self.readers[0] = JournalReader(self.folder, self.acknowledged)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def close_and_recover(self) -> None:
        assert self.writer is not None
        self.writer.close()
        self._recover()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def crash_and_recover(self) -> None:
        """The files as they are now are all that is left."""
        assert self.writer is not None
        copy = self.root / "crashed"
        copy.mkdir()
        for file in sorted(self.folder.glob("*.seg")):
            with contextlib.suppress(FileNotFoundError):  # deleted for the limit in this moment
                shutil.copy(file, copy)
        self.writer.close()
        shutil.rmtree(self.folder)
        copy.rename(self.folder)
        for index, reader in enumerate(self.readers):
            position = reader.position
            reader.close()
            self.readers[index] = JournalReader(self.folder, position)
        self._recover()

    def _recover(self) -> None:
        self.writer = JournalWriter.recover(self.folder, RUN, max_disk=64 << 10, first_sequence=max(self.seen))
        assert self.writer.sequence >= max(self.seen)
        if not self.damaged:
            assert self.writer.sequence >= len(self.model)
        del self.model[self.writer.sequence :]

    @precondition(lambda self: self.writer is not None)
    @rule(place=st.floats(0, 1), data=st.binary(min_size=1, max_size=4))
    def corrupt(self, place: float, data: bytes) -> None:
        """A few bytes of a segment that is not being written."""
        sealed = sorted(self.folder.glob("*.seg"))[:-2]
        if sealed:
            file = sealed[int(place * (len(sealed) - 1))]
            self.damaged = True
            with contextlib.suppress(FileNotFoundError), file.open("r+b") as handle:
                handle.seek(64 + int(place * (os.fstat(handle.fileno()).st_size - 68)))
                handle.write(data)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def delete_oldest(self) -> None:
        """Someone makes room by hand."""
        segments = sorted(self.folder.glob("*.seg"))
        if len(segments) > 3:
            segments[0].unlink(missing_ok=True)

    @invariant()
    def the_limit_holds(self) -> None:
        if self.folder.exists():
            assert disk_use(self.folder) <= 64 << 10

    @precondition(lambda self: self.writer is not None)
    @rule()
    def a_new_reader_gets_everything_that_is_left(self) -> None:
        assert self.writer is not None
        with JournalReader(self.folder) as reader:
            expected = 0
            defined = Definitions()
            while items := reader.read(100):
                expected = self._check(items, expected)
                for item in items:
                    if isinstance(item, Entry):
                        defined.apply(item.record)
            assert expected == self.writer.sequence == reader.end()
            if not self.damaged:
                assert defined.params == self.params


JournalMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


@pytest.mark.timeout(300)
class TestJournalMachine(JournalMachine.TestCase):  # type: ignore[misc,name-defined]
    """What a reader gets is what the list says, whatever happened to the files."""
