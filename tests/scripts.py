"""Running real scripts in real processes, the way a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    """The environment of a script: nothing of this session's trackers in it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_", "NEPTUNE_"))}
    kept.pop("RANK", None)
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "adapters")])
    return {**kept, "PYTHONPATH": path, "MLFLOW_DISABLE_TELEMETRY": "true", **more}


def start(folder: Path, text: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start a script with the given text in `folder`."""
    script = folder / "script.py"
    text = textwrap.dedent(text)
    if not script.exists() or script.read_text() != text:  # another process may be reading it
        script.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    folder: Path, text: str, *arguments: str, timeout: float = 60.0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end and return what it printed; its exit status is not checked."""
    with start(folder, text, *arguments, **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that the `jsonl` adapter wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(path: Path, name: str) -> list[tuple[int, Any]]:
    """(step, value) of one series in such a file, in order."""
    found = [line for line in lines(path) if name in line.get("metrics", {})]
    return [(line["step"], line["metrics"][name]) for line in found]


def statuses(path: Path) -> list[str]:
    """Every status in such a file."""
    return [line["status"] for line in lines(path) if "status" in line]


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line or working directory names `folder` (Linux)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder) in command and state != "Z" and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found
