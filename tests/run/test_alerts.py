"""`Run.on_alert`: what a script's own callback may do, and what it may not do to the training."""

from __future__ import annotations

from pathlib import Path

import pytest

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
        run._pace.next_look = 0
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
run._pace.next_look = 2**62
train(0)
run.close()
assert told == ["non_finite"], told
assert run.callback_faults == {"stop": 1}
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the on_alert callback 'stop' raised ValueError: no more") == 1


@pytest.mark.parametrize("error", ["SystemExit(3)", "GeneratorExit()"])
def test_a_callback_that_ends_the_script_does_not(tmp_path: Path, error: str) -> None:
    """`sys.exit()` in a callback is what it raises, like anything else (naive: exit status 3, and no table)."""
    done = scripts.run(
        tmp_path,
        HEAD
        + f"""
def leave(alert):
    raise {error}
run.on_alert(leave)
run._pace.next_look = 2**62
train(0)
run.close()
print(run.callback_faults, bridge.current())
""",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "{'leave': 1} None"), done.stderr
    assert f"the on_alert callback 'leave' raised {error.partition('(')[0]}" in done.stderr


def test_ctrl_c_in_a_callback_is_ctrl_c(tmp_path: Path) -> None:
    """While the run ends: the run has ended whole, and the interrupt is raised after that."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
def interrupted(alert):
    raise KeyboardInterrupt
run.on_alert(interrupted)
run._pace.next_look = 2**62
train(0)
try:
    run.close()
except KeyboardInterrupt:
    print("Ctrl-C", run.callback_faults, bridge.current(), run.close().complete)
""",
    )
    assert done.stdout.strip() == "Ctrl-C {} None True", done.stderr


def test_a_callback_that_cannot_take_an_alert_is_refused(tmp_path: Path) -> None:
    """A wrong number of arguments is told where the callback is given (naive: at the first alert, hours later)."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import functools
class Guard:
    def __call__(self, alert, step):
        pass
    def method(self, alert):
        pass
def nothing(): pass
def two(alert, step): pass
def named(*, alert): pass
def refused(*callbacks):
    for callback in callbacks:
        try:
            run.on_alert(callback)
        except TypeError as error:
            print(error)
        else:
            print("taken", callback)
refused(nothing, two, named, lambda: 0, Guard(), functools.partial(two, 1, 2), Guard().method.__func__)
print("--")
def forgiving(*given, **named): pass
forgiving.__wrapped__ = nothing
for callback in (Guard().method, lambda alert, step=0: 0, functools.partial(two, step=1), forgiving, [].append, print,
                 dict, told.append, ValueError):
    run.on_alert(callback)
""",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8, lines
    assert lines[-1] == "--"
    assert lines[0] == "on_alert: callback must take one argument, the alert; 'nothing' takes ()"
    assert lines[1] == "on_alert: callback must take one argument, the alert; 'two' takes (alert, step)"
    assert all(line.startswith("on_alert: callback must take one argument, the alert; ") for line in lines[:-1]), lines
