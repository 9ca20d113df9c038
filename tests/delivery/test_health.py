"""Alerts on their way: from a real run's journal to every backend, the terminal, the callback and the reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests import scripts
from tracker_bridge import read
from tracker_bridge.adapter import AlertItem, Item, Row
from tracker_bridge.builtin import MemoryAdapter, MemoryOptions, stored
from tracker_bridge.delivery import deliver_once
from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import Alert, NormVector, RunFinished, SeriesTable, pack_values
from tracker_bridge.rundir import Manifest, RunPaths, write_json

SCRIPT = """
import sys, time
import tracker_bridge as bridge
from tracker_bridge.records import NormVector, SeriesTable, pack_values
run = bridge.init({"backends": {"jsonl": {"path": "out.jsonl"}, "second": {"adapter": "jsonl", "path": "two.jsonl"}},
                   "health": {"disabled": sys.argv[1:]}}, run_id="r")
told = []
run.on_alert(lambda alert: told.append((alert.rule, alert.step)))
names = ("a.0.weight", "a.1.weight", "a.2.weight")
run._append(SeriesTable(0, 0, "gradients", names, (4, 4, 4)))
for step in range(40):
    values = [1.0, 1.0, 1.0] if step != 30 else [float("nan"), float("nan"), 1.0]
    run._append(NormVector(time.time_ns(), step, 0, pack_values(values)))
    run.log_metrics({"loss": 1.0}, step=step)
run.close()
print(told)
"""


def alerts_in(path: Path) -> list[tuple[str, int, int]]:
    return [(line["alert"]["rule"], line["step"], line["sequence"]) for line in scripts.lines(path) if "alert" in line]


def test_an_alert_reaches_every_backend_the_terminal_the_callback_and_the_reader(tmp_path: Path) -> None:
    """One NaN: one alert, in the same place of each backend's stream, with its `health/` point, and told once."""
    done = scripts.run(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    first, second = alerts_in(tmp_path / "out.jsonl"), alerts_in(tmp_path / "two.jsonl")
    assert [(rule, step) for rule, step, _ in first] == [("non_finite", 30)]
    assert first == second
    assert scripts.metrics(tmp_path / "out.jsonl", "health/non_finite") == [(30, 1.0)]
    assert done.stdout.strip() == "[('non_finite', 30)]"
    assert done.stderr.count("health: step 30") == 1
    (alert,) = read(tmp_path / "tracker_bridge_runs" / "r").alerts()
    assert (alert.rule, alert.step, alert.cause) == ("non_finite", 30, first[0][2])
    assert "a.1.weight" in alert.layers


def test_a_disabled_rule_is_silent_and_an_unknown_one_is_told(tmp_path: Path) -> None:
    """The configuration turns rules off by name; a wrong name is an error that names the nearest one."""
    quiet = scripts.run(tmp_path, SCRIPT, "non_finite")
    assert quiet.returncode == 0, quiet.stderr
    assert alerts_in(tmp_path / "out.jsonl") == []
    (tmp_path / "wrong").mkdir()
    wrong = scripts.run(tmp_path / "wrong", SCRIPT, "spikes")
    assert wrong.returncode == 1
    assert "health.disabled: no rule is called 'spikes'; did you mean 'spike'?" in wrong.stderr


def test_kept_alerts_are_delivered_later_without_judging_again(tmp_path: Path) -> None:
    """A replay into another backend carries what was found, right behind its cause."""
    paths = RunPaths(tmp_path)
    write_json(paths.manifest, Manifest(run_id="kept", created_ns=1))
    with JournalWriter.create(paths.journal, "kept") as journal:
        journal.append(SeriesTable(0, 0, "gradients", ("w",), (1,)))
        for step in range(10):
            cause = journal.append(NormVector(step, step, 0, pack_values(np.array([np.nan if step == 5 else 1.0]))))
            if step == 5:
                kept = cause
        journal.append(RunFinished(1, "finished"))
    paths.alerts.mkdir(parents=True)
    with JournalWriter.create(paths.alerts, "kept") as alerts:
        alerts.append(Alert(5, "non_finite", 5, "error", "NaN in w", "NaN in w", ("w",), cause=kept or 0))
    deliver_once(tmp_path, backend="memory", adapter=MemoryAdapter(MemoryOptions()))
    items: list[Item] = stored("kept")
    (place,) = [index for index, item in enumerate(items) if isinstance(item, AlertItem)]
    before, alert, after = items[place - 1], items[place], items[place + 1]
    assert isinstance(before, Row)
    assert before.step == 5
    assert alert.sequence == before.sequence == kept
    assert isinstance(after, Row)
    assert after.names == ("health/non_finite",)
