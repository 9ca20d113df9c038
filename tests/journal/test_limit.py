"""`max_disk` is kept, every record that is gone is told, and what is left can be interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journal.journals import RUN, disk_use, drain, everything, gaps, numbers, point, records, steps
from tracker_bridge.journal import Definitions, Entry, Gap, JournalReader, JournalWriter
from tracker_bridge.records import Dropped, NormVector, Params, RunStarted, SeriesTable, Snapshot, Tags, pack_values

LIMIT = 256 << 10


def test_the_oldest_are_dropped_and_told(tmp_path: Path) -> None:
    """Disk stays within the limit at all times; a new reader learns how many records are gone, and gets all others."""
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=LIMIT) as writer:
        for step in range(20_000):
            assert writer.append(point(step, 40)) is not None
            if step % 100 == 0:
                assert disk_use(tmp_path / "j") <= LIMIT
        assert writer.dropped == {}
    items = everything(tmp_path / "j")
    assert numbers(items) == list(range(20_000))
    assert [gap.reason for gap in gaps(items)] == ["max_disk"]
    assert len(records(items)) > 20_000 // 20


def test_a_reader_whose_segment_is_deleted_goes_on_and_says_what_it_missed(tmp_path: Path) -> None:
    """A slow reader loses what was deleted, nothing else, and is told each time."""
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=LIMIT) as writer, JournalReader(tmp_path / "j") as reader:
        items = []
        for step in range(20_000):
            writer.append(point(step, 40))
            if step % 3000 == 0:
                items += reader.read(500)
        items += drain(reader)
    assert numbers(items) == list(range(20_000))
    assert len(gaps(items)) >= 3
    assert {gap.reason for gap in gaps(items)} == {"max_disk"}


def test_whoever_starts_at_the_oldest_segment_knows_params_tags_and_tables(tmp_path: Path) -> None:
    """Each segment can be interpreted without those before it, however many were deleted."""
    table = SeriesTable(0, 0, "gradients", ("a", "b"), (1, 2))
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=LIMIT) as writer:
        writer.append(Params(0, {"lr": 1}))
        writer.append(table)
        for step in range(6000):
            writer.append(NormVector(step, step, 0, pack_values([1.0, 2.0] * 20)))
            if step % 1000 == 0:
                writer.append(Tags(step, {f"t{step}": None}))
    defined = Definitions()
    for record in records(everything(tmp_path / "j")):
        defined.apply(record)
        if isinstance(record, NormVector):
            assert defined.tables == {0: table}
    assert defined.params == {"lr": 1}
    assert defined.tags == {f"t{step}": None for step in range(0, 6000, 1000)}


def test_an_attempt_names_its_own_tables(tmp_path: Path) -> None:
    """A run resumed many times does not restate the tables of the attempts before."""
    for attempt in range(1, 6):
        with JournalWriter.recover(tmp_path / "j", RUN) as writer:
            writer.append(RunStarted(0, RUN, attempt, 1, "h"))
            writer.append(SeriesTable(0, attempt, "gradients", ("a",), (1,)))
    snapshots = [record for record in records(everything(tmp_path / "j")) if isinstance(record, Snapshot)]
    assert [[table.table for table in snapshot.tables] for snapshot in snapshots] == [[1], [2], [3], [4]]


def test_drop_newest_keeps_what_nobody_has_delivered(tmp_path: Path) -> None:
    """The oldest stay, the newest are refused and counted, and the journal says so when there is room again."""
    delivered = 0
    with JournalWriter.create(
        tmp_path / "j", RUN, max_disk=LIMIT, when_full="drop_newest", delivered=lambda: delivered
    ) as writer:
        kept = [step for step in range(8000) if writer.append(point(step, 40)) is not None]
        assert kept == list(range(len(kept)))
        assert writer.dropped == {"max_disk": 8000 - len(kept)}
        assert disk_use(tmp_path / "j") <= LIMIT
        delivered = len(kept)
        _until_appended(writer)
    items = everything(tmp_path / "j")
    assert gaps(items)[0].sequence == 0
    told = [record for record in records(items) if isinstance(record, Dropped)]
    assert sum(record.reasons["max_disk"] for record in told) == writer.dropped["max_disk"]
    assert steps(items)[-1] == -1


@pytest.mark.parametrize("answer", [None, "fails"])
def test_drop_newest_deletes_nothing_while_delivery_is_unknown(tmp_path: Path, answer: str | None) -> None:
    """No answer and a failing one are both no permission, and neither reaches the caller."""

    def delivered() -> int | None:
        if answer is not None:
            raise OSError("state unreadable")
        return None

    with JournalWriter.create(
        tmp_path / "j", RUN, max_disk=LIMIT, when_full="drop_newest", delivered=delivered
    ) as writer:
        for step in range(8000):
            writer.append(point(step, 40))
    assert isinstance(everything(tmp_path / "j")[0], Entry)


def test_definitions_that_were_refused_arrive_when_there_is_room_again(tmp_path: Path) -> None:
    """A refused table or param is not lost: vectors that come later are never without their names."""
    delivered = 0
    with JournalWriter.create(
        tmp_path / "j", RUN, max_disk=LIMIT, when_full="drop_newest", delivered=lambda: delivered
    ) as writer:
        while writer.append(point(writer.sequence, 40)) is not None:
            pass
        full = writer.sequence
        table = SeriesTable(0, 0, "gradients", ("a",), (1,))
        assert writer.append(table) is None
        assert writer.append(Params(0, {"late": 1})) is None
        delivered = full
        _until_appended(writer)
    with JournalReader(tmp_path / "j") as reader:
        defined = Definitions()
        for item in drain(reader):
            if isinstance(item, Gap):
                continue
            defined.apply(item.record)
            if item.record == point(-1):
                assert (defined.tables, defined.params) == ({0: table}, {"late": 1})
                return
    pytest.fail("the record after the full disk is missing")


def _until_appended(writer: JournalWriter) -> None:
    """Append `point(-1)` until it is taken; the writer tries again at most a second after the last fault."""
    import time

    deadline = time.monotonic() + 10
    while writer.append(point(-1)) is None:
        assert time.monotonic() < deadline, writer.dropped
        time.sleep(0.01)
