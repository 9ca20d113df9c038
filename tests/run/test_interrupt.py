"""Ctrl-C while a run ends: delivery is cut short at once, without a traceback of ours, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import scripts
from tests.waiting import until
from tracker_bridge.rundir import RunPaths, load_manifest

HEAD = """
import os, sys, time
import tracker_bridge as bridge
from tracker_bridge.builtin import JsonlAdapter
from tracker_bridge import registry
run = bridge.init({"backends": {"hanging": {"path": "out.jsonl"}, "jsonl": {"path": "good.jsonl"}},
                   "delivery": {"close_timeout": 300, "mode": sys.argv[1]}}, run_id="r")
for step in range(20):
    run.log_metrics({"x": float(step)}, step=step)
"""

ADAPTER = """
import os, time
from tracker_bridge.builtin import JsonlAdapter
class Hanging(JsonlAdapter):
    def write(self, batch):
        if os.path.exists("hang"):
            time.sleep(10**6)
        super().write(batch)
"""

TRAIN = """
def train():
    print("training", flush=True)
    time.sleep(120)
"""

ENDINGS = {
    "with block": "with run:\n    train()\n",
    "uncaught, ended at exit": "train()\n",
    "finally": "try:\n    train()\nfinally:\n    run.close('killed')\n",
    "first one in close": "print('training', flush=True)\nrun.close()\nprint('went on')\n",
    "first one at exit": "print('training', flush=True)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hanging_adapter.py").write_text(ADAPTER)
    info = tmp_path / "hanging-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tracker_bridge.adapters]\nhanging = hanging_adapter:Hanging\n")
    (tmp_path / "hang").touch()
    return tmp_path


def interrupt_while_it_ends(folder: Path, text: str, mode: str) -> tuple[subprocess.Popen[str], str, str, float]:
    """Run it, interrupt the training (if it waits for that), then the end of the run; how long that took, in s."""
    paths = RunPaths(folder / "tracker_bridge_runs" / "r")
    with scripts.start(folder, text, mode, PYTHONPATH=f"{scripts.REPOSITORY}:{folder}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        if "train()" in text.partition("def train")[2].partition("time.sleep(120)")[2]:
            process.send_signal(signal.SIGINT)
        until(lambda: load_manifest(paths).status != "running", 30, "the run is being ended")
        until(lambda: (folder / "good.jsonl").exists(), 30, "delivery has begun")
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process, out, err, time.monotonic() - begun


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_ctrl_c_while_a_run_ends_cuts_delivery_short(folder: Path, ending: str, mode: str) -> None:
    """It ends at once, says what is kept and the command, status and exit status stay, and `sync` delivers the rest."""
    tail = ENDINGS[ending]
    process, out, err, seconds = interrupt_while_it_ends(folder, HEAD + TRAIN + tail, mode)
    assert seconds < 5
    interrupted = "train()" in tail
    by_itself = ending == "first one at exit"
    assert process.returncode == (0 if by_itself else -signal.SIGINT)
    assert "went on" not in out
    root = folder / "tracker_bridge_runs" / "r"
    assert err.count("tracker_bridge: run r: interrupted while it was delivered") == 1
    assert f"what is left is kept in {root}" in err
    assert f"deliver the rest with: tracker-bridge sync {root}" in err
    assert err.count("Traceback") == (0 if by_itself else 1), err
    assert "During handling" not in err
    assert "_channel.py" not in err
    assert "subprocess.py" not in err
    if interrupted:
        assert "in train\n" in err, "the script's own traceback"
    assert load_manifest(RunPaths(root)).status == ("killed" if interrupted else "finished")
    until(lambda: not scripts.processes_of(folder), 8, "no process stays behind")
    (folder / "hang").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "tracker_bridge", "sync", str(root)],
        cwd=folder,
        env=scripts.environment(PYTHONPATH=f"{scripts.REPOSITORY}:{folder}"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("out", "good"):
        assert scripts.metrics(folder / f"{name}.jsonl", "x") == [(step, float(step)) for step in range(20)]
        assert scripts.statuses(folder / f"{name}.jsonl")[-1] == ("killed" if interrupted else "finished")
