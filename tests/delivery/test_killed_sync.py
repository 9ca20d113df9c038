"""`tracker-bridge sync` that is killed: its delivery process ends soon, and everything stays for the next one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import scripts
from tests.waiting import until
from tracker_bridge.rundir import FileLock, RunPaths, load_state

ADAPTER = """
import os, time
from tracker_bridge.builtin import JsonlAdapter
class Hanging(JsonlAdapter):
    def _hang(self, where):
        if os.path.exists("hang_in_" + where):
            open("hangs", "w").close()
            time.sleep(10**6)
    def open(self, run):
        self._hang("open")
        return super().open(run)
    def write(self, batch):
        self._hang("write")
        super().write(batch)
"""

SCRIPT = """
import os, signal
import tracker_bridge as bridge
run = bridge.init(backends={"hanging": {"path": "out.jsonl"}}, run_id="r")
for step in range(50):
    run.log_metrics({"x": float(step)}, step=step)
os.kill(run._channel._process.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working directory in which an adapter `hanging` is installed, and a run that nothing of was delivered."""
    (tmp_path / "hanging_adapter.py").write_text(ADAPTER)
    info = tmp_path / "hanging-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tracker_bridge.adapters]\nhanging = hanging_adapter:Hanging\n")
    yield tmp_path
    for pid in scripts.processes_of(tmp_path):  # none, unless a test has failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start_sync(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tracker_bridge", "sync", str(folder / "tracker_bridge_runs" / "r")],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment(folder: Path) -> dict[str, str]:
    return scripts.environment(PYTHONPATH=f"{scripts.REPOSITORY}:{folder}")


@pytest.mark.parametrize("where", ["open", "write"])
def test_a_killed_sync_leaves_no_process_and_the_next_one_delivers_everything(folder: Path, where: str) -> None:
    """The adapter hangs, `sync` is killed: within seconds nothing of it runs, nothing is lost, nothing comes twice."""
    scripts.run(folder, SCRIPT, PYTHONPATH=f"{scripts.REPOSITORY}:{folder}")
    (folder / "hangs").unlink(missing_ok=True)
    (folder / f"hang_in_{where}").touch()
    with start_sync(folder) as sync:
        until(lambda: (folder / "hangs").exists(), 40, "the adapter hangs")
        sync.send_signal(signal.SIGKILL)
    until(lambda: not scripts.processes_of(folder), 8, "the delivery process of the killed sync ends")
    paths = RunPaths(folder / "tracker_bridge_runs" / "r")
    assert load_state(paths, "hanging").position.sequence == 0
    (folder / f"hang_in_{where}").unlink()
    with start_sync(folder) as sync:
        out, err = sync.communicate(timeout=60)
    assert sync.returncode == 0, out + err
    assert scripts.metrics(folder / "out.jsonl", "x") == [(step, float(step)) for step in range(50)]
    until(lambda: not scripts.processes_of(folder), 8, "nothing stays behind")


def test_a_killed_sync_that_waits_for_its_turn_leaves_no_process_either(folder: Path) -> None:
    """A delivery process whose starter is gone does not wait for the run's lock to deliver at some later time."""
    scripts.run(folder, SCRIPT, PYTHONPATH=f"{scripts.REPOSITORY}:{folder}")
    paths = RunPaths(folder / "tracker_bridge_runs" / "r")
    code = f"""
import sys, threading
from pathlib import Path
from tracker_bridge.delivery import sync_run
print("up", flush=True)
sync_run(Path({str(paths.root)!r}))
"""
    with FileLock(paths.delivery_lock):
        with subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=environment(folder)) as starter:
            until(lambda: len(scripts.processes_of(folder)) == 2, 40, "the delivery process has begun")
            starter.send_signal(signal.SIGKILL)
        until(lambda: not scripts.processes_of(folder), 8, "the delivery process ends although it waits for the lock")
