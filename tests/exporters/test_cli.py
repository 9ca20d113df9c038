"""`tracker-bridge export` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import environment
from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import Metrics, RunFinished
from tracker_bridge.rundir import Manifest, RunPaths, write_json


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        paths = RunPaths(tmp_path / "tracker_bridge_runs" / name)
        paths.root.mkdir(parents=True)
        with JournalWriter.create(paths.journal, name) as journal:
            for step in range(3):
                journal.append(Metrics(step, step, {"loss": step / 2, "acc": 1.0}))
            journal.append(RunFinished(9, "finished"))
        write_json(paths.manifest, Manifest(run_id=name, status="finished", created_ns=1, finished_ns=9))
    return tmp_path


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracker_bridge", "export", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60)


def test_a_run_goes_to_standard_output_or_a_file(runs: Path) -> None:
    """`-o -` prints nothing but the data; without it, a file named like the run is written and named."""
    printed = program(runs, "one", "-o", "-", "--include", "loss")
    assert (printed.returncode, printed.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    assert [(row["name"], row["step"], row["value"]) for row in rows] == [
        ("loss", "0", "0.0"),
        ("loss", "1", "0.5"),
        ("loss", "2", "1.0"),
    ]
    written = program(runs, "one", "--format", "jsonl")
    assert (written.returncode, written.stdout) == (0, "one.jsonl\n")
    lines = [json.loads(line) for line in (runs / "one.jsonl").read_text().splitlines()]
    assert (lines[0]["run_id"], lines[-1]["status"]) == ("one", "finished")


def test_several_runs_need_a_folder(runs: Path) -> None:
    """Several runs go into an existing folder; anything else that cannot work is status 2 and says why."""
    (runs / "out").mkdir()
    done = program(runs, "one", "two", "-f", "parquet", "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert [entry["points"] for entry in json.loads(done.stdout)["exported"]] == [6, 6]
    assert sorted(path.name for path in (runs / "out").iterdir()) == ["one.parquet", "two.parquet"]
    for arguments, message in (
        (("one", "two", "-o", "file.csv"), "need a folder"),
        (("one", "two", "-o", "-"), "one run"),
        (("one", "-f", "parquet", "-o", "-"), "csv or jsonl"),
        (("one", "-o", "missing/x.csv"), "missing"),
        (("three",), "there is no run"),
    ):
        wrong = program(runs, *arguments)
        assert (wrong.returncode, wrong.stdout) == (2, ""), arguments
        assert message in wrong.stderr
        assert "Traceback" not in wrong.stderr
