"""Kill a delivery at random points until it is through, then count what the tracker has."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import until
from tracker_bridge.adapter import Adapter
from tracker_bridge.records import Metrics, RunFinished
from tracker_bridge.rundir import RunPaths
from tracker_bridge.testing import Trial

ROOT = Path(__file__).resolve().parents[2]
SERIES = tuple(f"s/{number:02}" for number in range(50))
STEPS = 1_500


def prepare(folder: Path) -> RunPaths:
    """A run whose journal holds `STEPS` steps of all `SERIES`; the value is the step."""

    def unused() -> Adapter[Any]:
        raise AssertionError

    trial = Trial(folder, unused)
    trial.append(
        *(Metrics(1_750_000_000_000_000_000 + step, step, dict.fromkeys(SERIES, float(step))) for step in range(STEPS)),
        RunFinished(1_750_000_001_000_000_000, "finished"),
    )
    return trial.paths


def deliver_with_kills(paths: RunPaths, kind: str, options: Mapping[str, Any], kills: int, seed: int) -> None:
    """Start the delivery, SIGKILL it `kills` times at a random moment after it began to write, then let it finish."""
    ledger = paths.backend("backend") / f"{kind}.msgpack"
    moments = random.Random(seed)
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "tests.contract.killed_delivery",
        str(paths.root),
        kind,
        json.dumps(options),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = paths.root / "output.txt"
    for kill in range(kills + 1):
        before = _changed(ledger)
        # A file, not a pipe: whoever reads a pipe would wait for the SDK's processes too.
        with log.open("w") as output:
            child = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            until(partial(_began, ledger, before, child), 60.0, "the adapter opens")
            child.wait(moments.uniform(0.0, 1.0) if kill < kills else 100.0)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            until(partial(_nobody_in, child.pid), 20.0, f"the SDK's processes end with theirs: {_members(child.pid)}")
        except AssertionError as late:
            os.kill(child.pid, signal.SIGABRT)
            child.wait()
            raise AssertionError(log.read_text()) from late
        else:
            assert child.returncode == 0, log.read_text()
            assert "closed" in log.read_text(), log.read_text()


def _began(ledger: Path, before: int, child: subprocess.Popen[bytes]) -> bool:
    return _changed(ledger) != before or child.poll() is not None


def _nobody_in(session: int) -> bool:
    return not _members(session)


def _members(session: int) -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "name"]):
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(str(process.info))
        except (OSError, psutil.Error):
            continue
    return found


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0
