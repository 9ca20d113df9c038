"""Runs on disk as a training process leaves them, and the real program to look at them with."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tracker_bridge.config import load_config, redact
from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import Metrics, RunFinished
from tracker_bridge.rundir import Manifest, Owner, RunPaths, write_json

MakeRun = Callable[..., RunPaths]


@dataclass(frozen=True)
class Result:
    """What the program left: exit status and both outputs."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Program = Callable[..., Result]


def plain_environment(**more: str) -> dict[str, str]:
    """This environment without what would change the program's output or configuration."""
    unwanted = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in unwanted and not name.startswith("TRACKER_BRIDGE_")
    }
    return {**kept, **more}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """`python -m tracker_bridge` in `tmp_path`, with pipes for its outputs."""

    def run(*arguments: str, **environ: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "tracker_bridge", *arguments],
            cwd=tmp_path,
            env=plain_environment(**environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A run whose training process is gone: its journal holds `steps` losses, and nothing was delivered."""

    def make(
        run_id: str,
        backends: dict[str, Any],
        *,
        steps: int = 20,
        status: str = "finished",
        environ: dict[str, str] | None = None,
        **fields: Any,
    ) -> RunPaths:
        config = load_config({"backends": backends}, environ=environ or {}, cwd=tmp_path)
        paths = RunPaths(config.queue.dir / run_id)
        paths.root.mkdir(parents=True)
        now = time.time_ns()
        manifest = Manifest(
            run_id=run_id,
            created_ns=now,
            finished_ns=None if status == "running" else now,
            status=status,  # type: ignore[arg-type]
            owner=Owner(pid=2**22 + 1, host=socket.gethostname(), started=1),
            config=redact(config),
            **fields,
        )
        write_json(paths.manifest, manifest)
        writer = JournalWriter.create(paths.journal, run_id)
        for step in range(steps):
            writer.append(Metrics(time_ns=now, step=step, values={"loss": 1.0 / (step + 1)}))
        if status != "running":
            writer.append(RunFinished(time_ns=now, status=status))
        writer.close()
        return paths

    return make


def losses(file: Path) -> dict[int, float]:
    """Step -> loss, as the jsonl backend stored it."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["step"]: line["metrics"]["loss"] for line in lines if "metrics" in line}


EXPECTED_LOSSES = {step: 1.0 / (step + 1) for step in range(20)}
