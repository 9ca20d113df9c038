"""W&B's own helper process stopped or killed under a run: the end is bounded, nothing is lost, no process is left."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests import scripts
from tests.readback_wandb import read_run, stored_run
from tests.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

SCRIPT = """
import json, sys, time
import tracker_bridge as bridge
run = bridge.init(backends={"wandb": {"mode": "offline"}, "jsonl": {"path": "out.jsonl"}}, run_id="r")
for step in range(100):
    run.log_metrics({"x": float(step)}, step=step)
run.flush(60)
print(run._channel._process.pid, flush=True)
time.sleep(float(sys.argv[1]))  # the helper is stopped meanwhile
for step in range(100, 3000):
    run.log_metrics({"x": float(step)}, step=step)
begun = time.monotonic()
delivery = run.close(timeout=float(sys.argv[2]))
print(json.dumps([time.monotonic() - begun, delivery["jsonl"].pending, delivery["wandb"].pending]))
"""


def core_of(delivery: int) -> int:
    """The wandb-core that this delivery process started."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command and command[0].endswith(b"wandb-core") and f"--pid\0{delivery}".encode() in b"\0".join(command):
            return int(entry.name)
    return 0


@pytest.mark.parametrize(("kill", "timeout"), [(signal.SIGSTOP, "3"), (signal.SIGKILL, "60")])
def test_wandb_core_stopped_or_killed(tmp_path: Path, kill: signal.Signals, timeout: str) -> None:
    """Stopped, it hangs the SDK: close ends in time and a later sync delivers the rest. Killed, delivery recovers."""
    with scripts.start(tmp_path, SCRIPT, "2", timeout) as process:
        assert process.stdout is not None
        delivery = int(process.stdout.readline())
        core = until(lambda: core_of(delivery), 30, "wandb-core runs")
        os.kill(core, kill)
        begun = time.monotonic()
        out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    seconds, jsonl_pending, _ = json.loads(out)
    assert jsonl_pending == 0
    assert len(scripts.metrics(tmp_path / "out.jsonl", "x")) == 3000
    if kill == signal.SIGSTOP:
        assert seconds <= 3 + 1 + 1
    assert time.monotonic() - begun < 120
    until(lambda: not Path(f"/proc/{core}").exists(), 15, "wandb-core is gone")
    assert not scripts.processes_of(tmp_path)
    done = scripts.run(
        tmp_path, "import sys; from tracker_bridge.cli import main; sys.exit(main(['sync']))", timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    points = stored_run(read_run(tmp_path, "r")).metrics["x"]
    assert sorted(point.value for point in points) == [float(step) for step in range(3000)]
