"""The suite itself: it must fail on adapters that do what users of every wrapper complain about."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.test_jsonl import TestJsonl as JsonlSuite
from tests.waiting import until
from tracker_bridge.adapter import Batch, Capabilities, Item, RetryLater, Row, RunInfo, TagsItem, TextItem
from tracker_bridge.builtin import JsonlAdapter
from tracker_bridge.records import Metrics
from tracker_bridge.testing import AdapterTests, FaultyAdapter, RecordingAdapter, SlowAdapter, Trial

LARGEST = 1.797e308


class Spoiled(JsonlAdapter):
    """An adapter that changes what it stores; subclasses say how."""

    def change(self, item: Item) -> Item | None:
        return item

    def write(self, batch: Batch) -> None:
        changed = (self.change(item) for item in batch.items)
        super().write(Batch(tuple(item for item in changed if item is not None), batch.renamed))


class LosesLateRows(Spoiled):
    largest = -1.0

    def change(self, item: Item) -> Item | None:
        if isinstance(item, Row):
            if item.step < self.largest:
                return None
            self.largest = item.step
        return item


class SendsItsOwnTime(Spoiled):
    def change(self, item: Item) -> Item:
        return dataclasses.replace(item, time_ns=item.time_ns + 3_000_000_000)


class MakesInfinitiesFinite(Spoiled):
    def change(self, item: Item) -> Item:
        if isinstance(item, Row):
            return dataclasses.replace(item, values=np.clip(item.values, -LARGEST, LARGEST))
        return item


class RoundsSteps(Spoiled):
    def change(self, item: Item) -> Item:
        return dataclasses.replace(item, step=int(item.step)) if isinstance(item, Row) else item


class MergesNames(Spoiled):
    def change(self, item: Item) -> Item:
        if isinstance(item, Row):
            return dataclasses.replace(
                item, names=tuple(name.replace("(", "[").replace(")", "]") for name in item.names)
            )
        return item


class KeepsRemovedTags(Spoiled):
    def change(self, item: Item) -> Item:
        return (
            dataclasses.replace(item, now={**item.now, **dict.fromkeys(item.remove)})
            if isinstance(item, TagsItem)
            else item
        )


class PutsTextsAtStepZero(Spoiled):
    def change(self, item: Item) -> Item:
        return dataclasses.replace(item, step=0) if isinstance(item, TextItem) else item


class StoresEverythingTwice(Spoiled):
    def write(self, batch: Batch) -> None:
        self._written = -1
        super().write(batch)


class AlwaysFinished(Spoiled):
    def close(self, status: str | None) -> None:
        super().close("finished" if status else None)


class Prints(Spoiled):
    def close(self, status: str | None) -> None:
        print("View run at http://...")
        super().close(status)


@pytest.mark.parametrize(
    ("spoiled", "test"),
    [
        (LosesLateRows, "test_late_steps"),
        (SendsItsOwnTime, "test_values_steps_and_times"),
        (MakesInfinitiesFinite, "test_values_that_are_not_finite"),
        (RoundsSteps, "test_fractional_steps"),
        (MergesNames, "test_names"),
        (KeepsRemovedTags, "test_tags"),
        (PutsTextsAtStepZero, "test_texts"),
        (StoresEverythingTwice, "test_delivery_again_makes_no_visible_duplicate"),
    ],
)
def test_suite_notices(spoiled: type[JsonlAdapter], test: str, tmp_path: Path) -> None:
    """Each of these faults of an adapter fails the test that is meant to find it."""

    class Suite(JsonlSuite):
        adapter_type = spoiled

    with pytest.raises(AssertionError):
        getattr(suite_in(Suite, tmp_path), test)()


def test_suite_notices_a_wrong_status_and_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A status that is always `finished`, and a line on the script's stdout."""

    class Statuses(JsonlSuite):
        adapter_type = AlwaysFinished

    class Output(JsonlSuite):
        adapter_type = Prints

    with pytest.raises(AssertionError):
        suite_in(Statuses, tmp_path / "a").test_status("failed")
    with pytest.raises(AssertionError):
        suite_in(Output, tmp_path / "b").test_nothing_is_printed(capfd)


def suite_in(kind: type[AdapterTests], place: Path) -> Any:
    place.mkdir(exist_ok=True)
    suite = kind()
    suite.place = place
    return suite


def test_recording_adapter_keeps_what_it_is_told(tmp_path: Path) -> None:
    """Opened with the run, every item, and how it ended."""
    recorder = RecordingAdapter()
    trial = Trial(tmp_path, lambda: recorder)
    trial.append(Metrics(1, 0, {"loss": 1.0}), Metrics(2, 1, {"loss": 2.0}))
    trial.deliver()
    assert [run.run_id for run in recorder.opened] == ["trial-1"]
    assert [item.step for item in recorder.items if isinstance(item, Row)] == [0, 1]
    assert (recorder.flushes, recorder.closed) == (1, ["crashed"])


def test_recording_adapter_has_the_capabilities_that_it_is_given(tmp_path: Path) -> None:
    """So that a test can look at any tracker's translation."""
    recorder = RecordingAdapter(capabilities=Capabilities(non_finite="none"))
    trial = Trial(tmp_path, lambda: recorder)
    trial.append(Metrics(1, 0, {"loss": float("nan")}))
    trial.deliver()
    assert [item.names for item in recorder.items if isinstance(item, Row)] == [("loss/non_finite",)]


def test_faulty_adapter_fails_as_told_and_then_works() -> None:
    """One entry of the list for each call; None and the end of the list mean no fault."""
    recorder = RecordingAdapter()
    adapter = FaultyAdapter(recorder, {"write": [RetryLater("busy"), None, ValueError("bug")]})
    with pytest.raises(RetryLater, match="busy"):
        adapter.write(Batch(()))
    adapter.write(Batch(()))
    with pytest.raises(ValueError, match="bug"):
        adapter.write(Batch(()))
    adapter.write(Batch(()))
    assert (adapter.calls["write"], len(recorder.batches)) == (4, 2)


def test_slow_adapter_waits_until_it_is_released(tmp_path: Path) -> None:
    """A tracker that hangs, for as long as the test wants."""
    recorder = RecordingAdapter()
    adapter = SlowAdapter(recorder, 60.0)
    adapter.open(RunInfo("r", "b", None, None, None, tmp_path, tmp_path))
    writing = threading.Thread(target=adapter.write, args=(Batch(()),))
    writing.start()
    assert recorder.batches == []
    adapter.release.set()
    writing.join(10)
    assert until(lambda: len(recorder.batches), 5.0) == 1
