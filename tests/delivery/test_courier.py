"""The courier with adapters that retry, refuse, break and hang: nothing lost, nothing skipped, everything counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.waiting import until
from tracker_bridge.adapter import (
    Adapter,
    Batch,
    Capabilities,
    Item,
    Opened,
    Options,
    Rejected,
    RetryLater,
    Row,
    RunInfo,
)
from tracker_bridge.config import BackendConfig
from tracker_bridge.delivery import Host, Lifecycle, Plan, _backoff, deliver_once
from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import Metrics, RunFinished, RunStarted
from tracker_bridge.rundir import Manifest, RunPaths, load_manifest, load_state, write_json


class NoOptions(Options, frozen=True, kw_only=True):
    """None."""


class Tracker(Adapter[NoOptions]):
    """Keeps rows; subclasses misbehave."""

    options_type = NoOptions
    capabilities: ClassVar[Capabilities] = Capabilities(max_items=10)

    def __init__(self) -> None:
        super().__init__(NoOptions())
        self.steps: list[object] = []
        self.opened = 0
        self.status: object = "open"
        self.info: RunInfo | None = None

    def open(self, run: RunInfo) -> Opened:
        self.opened += 1
        self.info = run
        return Opened({"id": "t1"}, "http://tracker/t1")

    def write(self, batch: Batch) -> None:
        self.steps += [item.step for item in batch.items if isinstance(item, Row)]

    def close(self, status: str | None) -> None:
        self.status = status


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backoff, "FIRST", 0.001)
    monkeypatch.setattr(_backoff, "LARGEST", 0.01)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return make_run(tmp_path)


def make_run(folder: Path, steps: int = 25, status: str | None = "finished") -> RunPaths:
    paths = RunPaths(folder)
    write_json(paths.manifest, Manifest(run_id="r", created_ns=1))
    with JournalWriter.create(paths.journal, "r") as journal:
        for step in range(steps):
            journal.append(Metrics(step, step, {"loss": float(step)}))
        if status:
            journal.append(RunFinished(1, status))
    return paths


def test_everything_arrives_in_order_and_the_end_is_told(paths: RunPaths) -> None:
    """All records, once, in order, then the run's own status; ids and address are kept."""
    tracker = Tracker()
    state = deliver_once(paths.root, backend="t", adapter=tracker)
    assert tracker.steps == list(range(25))
    assert tracker.status == "finished"
    assert (state.health, state.sent, state.points, state.dropped) == ("closed", 26, 25, {})
    identity = load_manifest(paths).backends["t"]
    assert (identity.ids, identity.url) == ({"id": "t1"}, "http://tracker/t1")


def test_second_delivery_sends_nothing_again(paths: RunPaths) -> None:
    """A delivered run is not even opened again."""
    deliver_once(paths.root, backend="t", adapter=Tracker())
    again = Tracker()
    deliver_once(paths.root, backend="t", adapter=again)
    assert (again.opened, again.steps) == (0, [])


def test_run_without_an_end_is_closed_as_crashed_or_left_open(tmp_path: Path) -> None:
    """Where the journal holds no end, the caller decides what the tracker is told."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    crashed, left = Tracker(), Tracker()
    deliver_once(make_run(tmp_path / "a", status=None).root, backend="t", adapter=crashed)
    deliver_once(make_run(tmp_path / "b", status=None).root, backend="t", adapter=left, close=False)
    assert (crashed.status, left.status) == ("crashed", None)


class KilledInClose(Tracker):
    """All is written and the cursor is behind the end of the run, but `close` does not come through."""

    def close(self, status: str | None) -> None:
        raise ConnectionResetError("gone")


@pytest.mark.parametrize("status", ["finished", "failed", "killed"])
def test_the_end_of_a_run_is_told_though_an_earlier_delivery_had_read_it(tmp_path: Path, status: str) -> None:
    """A delivery that ends between the last record and `close` leaves the rest to the next one (naive: crashed)."""
    paths = make_run(tmp_path, status=status)
    state = deliver_once(paths.root, backend="t", adapter=KilledInClose(), timeout=0.2)
    assert (state.sent, state.health) == (26, "down")
    again = Tracker()
    state = deliver_once(paths.root, backend="t", adapter=again)
    assert (again.steps, again.status, state.health) == ([], status, "closed")


def test_a_resumed_run_that_vanishes_is_not_given_the_end_of_its_earlier_attempt(paths: RunPaths) -> None:
    """The end that a delivery remembers is the one of the attempt that it has read."""
    deliver_once(paths.root, backend="t", adapter=KilledInClose(), timeout=0.2)
    with JournalWriter.recover(paths.journal, "r") as journal:
        journal.append(RunStarted(2, "r", 2, 1, "host"))
    deliver_once(paths.root, backend="t", adapter=KilledInClose(), timeout=0.2)
    again = Tracker()
    state = deliver_once(paths.root, backend="t", adapter=again)
    assert (again.status, state.closed_attempt) == ("crashed", 2)


class Flaky(Tracker):
    """Every second write fails."""

    calls = 0

    def write(self, batch: Batch) -> None:
        self.calls += 1
        if self.calls % 2:
            raise RetryLater("503 from the server", after=0.0)
        super().write(batch)


def test_retry_later_is_retried_until_it_works(paths: RunPaths) -> None:
    """A server that comes and goes gets everything, once."""
    tracker = Flaky()
    state = deliver_once(paths.root, backend="t", adapter=tracker)
    assert tracker.steps == list(range(25))
    assert state.last_error == "503 from the server"
    assert state.health == "closed"
    assert paths.notices.read_text().count("\n") >= 1


class Picky(Tracker):
    """Refuses steps 3 and 17, naming the whole batch; stores nothing of a refused batch."""

    def write(self, batch: Batch) -> None:
        if any(isinstance(item, Row) and item.step in (3, 17) for item in batch.items):
            raise Rejected(batch.items, "INVALID_PARAMETER_VALUE")
        super().write(batch)


def test_a_refused_record_takes_no_other_with_it(paths: RunPaths) -> None:
    """A batch is halved until only the bad ones are left; they are counted and kept for inspection."""
    tracker = Picky()
    state = deliver_once(paths.root, backend="t", adapter=tracker)
    assert sorted(tracker.steps) == [step for step in range(25) if step not in (3, 17)]
    assert tracker.steps == sorted(tracker.steps)
    assert state.dropped == {"INVALID_PARAMETER_VALUE": 2}
    kept = paths.rejected("t").read_text()
    assert kept.count("INVALID_PARAMETER_VALUE") == 2
    assert '"step": 17' in kept


class PartlyPicky(Tracker):
    """Stores the good items of a batch and names the bad ones."""

    def write(self, batch: Batch) -> None:
        bad = [item for item in batch.items if isinstance(item, Row) and item.step % 5 == 0]
        good: list[Item] = [item for item in batch.items if item not in bad]
        super().write(Batch(tuple(good)))
        if bad:
            raise Rejected(bad, "no")


def test_items_that_were_stored_beside_refused_ones_are_not_sent_again(paths: RunPaths) -> None:
    """`Rejected` names what was refused; the rest counts as stored."""

    class Strict(PartlyPicky):
        seen: ClassVar[list[int]] = []

        def write(self, batch: Batch) -> None:
            if len(batch.items) == 1 and isinstance(batch.items[0], Row) and batch.items[0].step % 5 == 0:
                raise Rejected(batch.items, "no")
            super().write(batch)

    tracker = Strict()
    state = deliver_once(paths.root, backend="t", adapter=tracker)
    assert tracker.steps == [step for step in range(25) if step % 5]
    assert state.dropped == {"no": 5}


class Buggy(Tracker):
    """Raises something unforeseen on one record."""

    def write(self, batch: Batch) -> None:
        if any(isinstance(item, Row) and item.step == 7 for item in batch.items):
            raise KeyError("surprise")
        super().write(batch)


def test_an_unforeseen_exception_is_contained_to_its_record(paths: RunPaths) -> None:
    """A bug in an adapter costs the record that triggers it, counted, and nothing else."""
    tracker = Buggy()
    state = deliver_once(paths.root, backend="t", adapter=tracker)
    assert sorted(tracker.steps) == [step for step in range(25) if step != 7]
    assert state.dropped == {"adapter error: KeyError: 'surprise'": 1}
    assert tracker.opened > 1, "the SDK must have been given a fresh start before a record was dropped"


class Broken(Tracker):
    """Never works."""

    def write(self, batch: Batch) -> None:
        raise AttributeError("the SDK has changed")


def test_an_adapter_that_never_works_loses_almost_nothing(paths: RunPaths) -> None:
    """Where every record fails it is the adapter: the journal keeps the records for a mended one."""
    tracker = Broken()
    state = deliver_once(paths.root, backend="t", adapter=tracker, timeout=2.0)
    assert state.health == "down"
    assert sum(state.dropped.values()) <= 8
    mended = Tracker()
    deliver_once(paths.root, backend="t", adapter=mended)
    assert mended.steps == list(range(25))


class Hanging(Tracker):
    """Hangs in `write` until the test is over."""

    release = threading.Event()

    def write(self, batch: Batch) -> None:
        self.release.wait(60)


@pytest.fixture
def _release() -> Iterator[None]:
    Hanging.release.clear()
    yield
    Hanging.release.set()


@pytest.mark.usefixtures("_release")
def test_a_hanging_backend_delays_no_other(paths: RunPaths) -> None:
    """Each backend has its own courier: the others finish while one hangs, and the end is bounded."""
    good, hanging = Tracker(), Hanging()
    lifecycle = Lifecycle()
    lifecycle.end("crashed")
    backends = tuple(BackendConfig(name=name, adapter="x") for name in ("hanging", "good"))
    host = Host(paths, Plan(backends=backends), lifecycle)
    results: list[bool] = []
    adapters = {"good": good, "hanging": hanging}
    thread = threading.Thread(target=lambda: results.append(host.serve(watch=None, adapters=adapters)))
    thread.start()
    until(lambda: load_state(paths, "good").health == "closed", what="the good backend finishes")
    assert good.steps == list(range(25))
    lifecycle.limit(0.1)
    begun = time.monotonic()
    thread.join(10)
    assert results == [False]
    assert time.monotonic() - begun < 5
    assert load_state(paths, "hanging").sent == 0


class Down(Tracker):
    """Not there until `up`."""

    up = False

    def open(self, run: RunInfo) -> Opened:
        if not self.up:
            raise ConnectionError("connection refused")
        return super().open(run)


def test_what_a_dead_backend_missed_it_gets_in_order(paths: RunPaths) -> None:
    """Delivery against a dead tracker ends in time with everything pending, and later delivers all of it."""
    dead = Down()
    state = deliver_once(paths.root, backend="t", adapter=dead, timeout=0.3)
    assert (state.sent, state.health) in {(0, "retrying"), (0, "down")}
    assert state.last_error == "ConnectionError: connection refused"
    dead.up = True
    state = deliver_once(paths.root, backend="t", adapter=dead)
    assert dead.steps == list(range(25))
    assert state.health == "closed"


def test_identity_is_given_back_when_a_run_goes_on(paths: RunPaths) -> None:
    """The adapter continues its own run: `open` gets the ids that it returned before."""
    deliver_once(paths.root, backend="t", adapter=Tracker())
    with JournalWriter.recover(paths.journal, "r") as journal:
        journal.append(Metrics(1, 99, {"loss": 1.0}))
    again = Tracker()
    deliver_once(paths.root, backend="t", adapter=again)
    assert again.info is not None
    assert again.info.ids == {"id": "t1"}
    assert again.steps == [99]


class LearnsLater(Tracker):
    """Its server refuses things after `write` has returned; it counts anew when it is opened anew."""

    def write(self, batch: Batch) -> None:
        if self.opened == 1 and len(self.steps) >= 10:
            raise ConnectionResetError("the SDK's own process is gone")
        super().write(batch)

    def refused(self) -> dict[str, int]:
        return {"SERIES_STEP_NON_INCREASING": len(self.steps) // 10} if self.opened == 1 else {"OTHER": 1}


def test_what_a_tracker_refuses_afterwards_is_counted(paths: RunPaths) -> None:
    """Refusals that an SDK learns of later are among the drops, also across a fresh start of the adapter."""
    state = deliver_once(paths.root, backend="t", adapter=LearnsLater())
    assert state.dropped == {"SERIES_STEP_NON_INCREASING": 1, "OTHER": 1}
