"""`log_metrics` in C does what the way in Python does, and leaves to it whatever is not plain."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tracker_bridge as bridge
from tracker_bridge.journal import Entry, JournalReader, _segment, _writer
from tracker_bridge.journal._tail import PythonTail
from tracker_bridge.records import Metrics
from tracker_bridge.run import _run
from tracker_bridge.run._pace import Pace, PythonPace

if Pace is PythonPace:
    pytest.skip("the modules in C are not built", allow_module_level=True)

NOW = 1_800_000_000_000_000_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bridge.Run]:
    monkeypatch.chdir(tmp_path)
    with bridge.init({"backends": "none"}) as run:
        run._pace.next_look = 2**62
        yield run


def logged(run: bridge.Run) -> list[Metrics]:
    """Everything that is in the journal."""
    assert run.dir is not None
    with JournalReader(run.dir / "journal") as reader:
        items = reader.read(100_000, 1 << 30)
    return [item.record for item in items if isinstance(item, Entry) and isinstance(item.record, Metrics)]


CALLS: list[tuple[Any, Any]] = [
    ({"loss": 0.5}, 3),
    ({"loss": 0.5, "epoch": 1}, None),
    ({"loss": float("nan"), "x": float("inf")}, 10),
    ({"loss": True}, None),
    ({"loss": np.float64(0.25)}, None),
    ({"loss": torch.tensor(0.75)}, None),
    ({"größe": 1.0, "": 2.0}, 2**63 - 1),
    ({"x": 1.0}, None),
    ({"x": 1.0}, -(2**63)),
    ({"x": 1.0}, np.int64(5)),
    ({"x": 1.0}, 2.5),
    ({"x": 1.0}, None),
    ({"x": 1.0}, True),
    ({}, 7),
    ({"x": 1.0}, None),
    ({"half \udce9": 1.0}, 20),
    ({"x" * 70_000: 1.0}, 21),
    ({str(number): float(number) for number in range(20_000)}, 22),
    ({"x": 10**400}, 23),
    ({"x": 1.0}, 2**63),
    ({"x": "text"}, 24),
    ({1: 1.0}, 25),
    ([("x", 1.0)], 26),
    ({"x": 1.0}, "27"),
    ({"x": 1.0}, None),
]


def test_both_ways_log_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same records, steps and refusals, in whatever order plain calls and others come."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    found: dict[str, list[Any]] = {}
    for way in ("C", "Python"):
        if way == "Python":
            monkeypatch.setattr(_run, "Pace", PythonPace)
            monkeypatch.setattr(_writer, "Tail", PythonTail)
        outcomes: list[Any] = []
        with bridge.init({"backends": "none", "run_id": way}) as run:
            for data, step in CALLS:
                try:
                    run.log_metrics(data, step)
                    outcomes.append(run._pace.last_step)
                except (TypeError, ValueError) as error:
                    outcomes.append(f"{type(error).__name__}: {error}")
        found[way] = [outcomes, [repr(record) for record in logged(run)]]
    assert found["C"] == found["Python"]
    assert len(found["C"][1]) == 18


@pytest.mark.parametrize("mapped", [True, False])
def test_plain_calls_take_the_shortcut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool) -> None:
    """Nearly all of them: the Python code after it is not reached, except for a new segment."""
    if not mapped:
        monkeypatch.setattr(_segment, "mmap", None)
    monkeypatch.chdir(tmp_path)
    with bridge.init({"backends": "none"}) as run:
        run._pace.next_look = 2**62
        reached = 0
        take = run._take_step

        def counted(step: Any) -> Any:
            nonlocal reached
            reached += 1
            return take(step)

        monkeypatch.setattr(run, "_take_step", counted)
        for _ in range(5000):
            run.log_metrics({"loss": 0.5, "epoch": 3})
    assert [record.step for record in logged(run)] == list(range(5000))
    assert reached < 100


def test_a_call_that_is_due_looks_after_delivery(run: bridge.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a second, and when the clock was set back."""
    looks: list[int] = []
    monkeypatch.setattr(run, "_look", looks.append)
    run._pace.looked, run._pace.next_look = NOW, NOW + 10
    for now in (NOW, NOW + 9, NOW + 10, NOW - 1):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        run.log_metrics({"loss": 1.0})
    assert looks == [NOW + 10, NOW - 1]


def test_the_scripts_mapping_is_neither_kept_nor_changed(run: bridge.Run) -> None:
    """A script that goes on with the same mapping changes nothing that was logged."""
    data: dict[str, float] = {"loss": 1}
    for step in range(100):
        data["loss"] = step
        run.log_metrics(data, step)
    assert data == {"loss": 99}
    assert type(data["loss"]) is int
    assert [record.values["loss"] for record in logged(run)] == [float(step) for step in range(100)]


@pytest.mark.parametrize("mapped", [True, False])
def test_threads_without_a_step_take_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """Also where another thread runs while a record is written to a file that is not mapped."""
    if not mapped:
        monkeypatch.setattr(_segment, "mmap", None)
    monkeypatch.chdir(tmp_path)
    data = {"loss": 1.0, "text" * 100: 2.0}
    with bridge.init({"backends": "none"}) as run:
        threads = [threading.Thread(target=lambda: [run.log_metrics(data) for _ in range(2000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(record.step for record in logged(run)) == list(range(8000))


def test_a_forked_child_and_a_closed_run_log_nothing(run: bridge.Run) -> None:
    """The shortcut ends with the run: what is logged afterwards is counted, as in Python."""
    run.log_metrics({"x": 1.0})
    child = os.fork()
    if child == 0:
        run.log_metrics({"from the child": 1.0})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    run.close()
    run.log_metrics({"late": 1.0})
    assert [list(record.values) for record in logged(run)] == [["x"]]
