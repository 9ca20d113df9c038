"""`Run.on_alert`: what a script's own callback may do, and what it may not do to the training."""

from __future__ import annotations

from pathlib import Path

from tests import scripts

HEAD = """
import sys, time
import tracker_bridge as bridge
from tracker_bridge.records import NormVector, SeriesTable, pack_values
run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r")
told = []
def stop(alert):
    told.append(alert.rule)
    raise ValueError("no more")
run._append(SeriesTable(0, 0, "gradients", ("a.weight", "b.weight"), (4, 4)))
def train(start):
    for step in range(start, start + 100):  # alerts of one rule are at least 50 steps apart
        bad = float("nan") if step == start + 70 else 1.0
        run._append(NormVector(time.time_ns(), step, 0, pack_values([bad, 1.0])))
        run.log_metrics({"loss": 1.0}, step=step)
"""


def test_what_is_no_callable_is_refused(tmp_path: Path) -> None:
    """A callback that cannot be called is a TypeError that names the argument and what was given."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
for wrong in (None, "stop", 3):
    try:
        run.on_alert(wrong)
    except TypeError as error:
        print(error)
""",
    )
    assert done.stdout.splitlines() == [
        f"on_alert: callback must be callable, not {kind}" for kind in ("NoneType", "str", "int")
    ]


def test_a_callback_that_raises_reaches_neither_training_nor_the_other_callbacks(tmp_path: Path) -> None:
    """While training: told once with the callback's name, counted, and every later alert is still given."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
heard = []
run.on_alert(stop)
run.on_alert(lambda alert: heard.append(alert.rule))
def train_until_told(start, count):
    train(start)
    deadline = time.monotonic() + 30
    while len(told) < count and time.monotonic() < deadline:
        run._next_look = 0
        run.log_metrics({"waiting": 1.0})
        time.sleep(0.05)
train_until_told(0, 1)
train_until_told(100, 2)
assert told == heard == ["non_finite", "non_finite"], (told, heard)
assert run.callback_faults == {"stop": 2}, run.callback_faults
run.close()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the on_alert callback 'stop' raised ValueError: no more") == 1
    assert "Traceback" not in done.stderr


def test_a_callback_that_raises_at_close_is_told_as_well(tmp_path: Path) -> None:
    """An alert that is found while the run ends: the callback's fault is told and counted in the same way."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
run.on_alert(stop)
run._next_look = 2**62
train(0)
run.close()
assert told == ["non_finite"], told
assert run.callback_faults == {"stop": 1}
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the on_alert callback 'stop' raised ValueError: no more") == 1
