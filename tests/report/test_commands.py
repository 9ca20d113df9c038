"""`diagnose`, `report`, `show` and `tail` as programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.report.runs import hostile_records, training, write_run
from tracker_bridge.journal import JournalWriter
from tracker_bridge.rundir import Manifest, RunPaths, this_process, write_json


def program(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m tracker_bridge` in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "tracker_bridge", *arguments],
        cwd=folder,
        env=_environment(**environ),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def _environment(**environ: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRACKER_BRIDGE_", "COLUMNS", "NO_COLOR", "FORCE_COLOR"))
    }
    return {**kept, "MPLCONFIGDIR": "/tmp", **environ}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs: `bad`, `good`, `hostile`."""
    write_run(tmp_path / "bad", training(steps=300, spike_at=200), name="the bad one")
    write_run(tmp_path / "good", training(steps=150, seed=1))
    write_run(tmp_path / "hostile", hostile_records(), name="\x1b[31mname")
    return tmp_path


def test_diagnose(folder: Path):
    """A run with trouble exits with 1 and says where; a healthy one with 0; --json is one document."""
    bad = program("diagnose", "./bad", folder=folder)
    assert bad.returncode == 1, bad.stderr
    assert "step 200" in bad.stdout
    assert "try: " in bad.stdout
    good = program("diagnose", "./good", folder=folder)
    assert (good.returncode, good.stderr) == (0, "")
    assert "Every rule was silent" in good.stdout
    plain = program("diagnose", "./bad", "--json", folder=folder)
    assert json.loads(plain.stdout)["alerts"][0]["rule"] == "spike"
    assert program("diagnose", "./none", folder=folder).returncode == 2


def test_report(folder: Path):
    """A page or a picture, of one run or several; what cannot be written is a usage error."""
    page = program("report", "./bad", folder=folder)
    assert (page.returncode, page.stdout) == (0, "report.html\n"), page.stderr
    assert (folder / "report.html").stat().st_size > 1_000_000
    both = program("report", "./bad", "./good", "-o", "both.html", "--json", folder=folder)
    assert [run["run"] for run in json.loads(both.stdout)["runs"]] == ["bad", "good"]
    picture = program("report", "./bad", "./good", "--png", folder=folder)
    assert picture.returncode == 0, picture.stderr
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    refused = program("report", "./bad", "-o", "no/such/place.html", folder=folder)
    assert refused.returncode == 2
    assert "no/such/place.html" in refused.stderr


def test_show(folder: Path):
    """Off a terminal the map is made of characters, in colour of cells; the table names the largest layers."""
    plain = program("show", "./bad", "--rows", "10", "--layers", "5", folder=folder)
    assert plain.returncode == 0, plain.stderr
    assert "model.encoder.layer.0" in plain.stdout
    assert "\x1b" not in plain.stdout
    assert "@" in plain.stdout
    coloured = program("show", "./bad", folder=folder, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[" in coloured.stdout
    assert json.loads(program("show", "./bad", "--json", folder=folder).stdout)["layers"] == 24


@pytest.mark.parametrize("command", ["show", "diagnose", "tail"])
def test_hostile_texts_do_not_reach_the_terminal(folder: Path, command: str):
    """Escapes, controls and direction marks in names are written out."""
    done = program(command, "./hostile", folder=folder)
    assert done.returncode in (0, 1), done.stderr
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout + done.stderr)
    if command == "show":
        assert r"\x1b[31mred" in done.stdout
        assert "<script>" in done.stdout


def test_tail_of_a_finished_run(folder: Path):
    """The last lines and the status, then the end; as JSON, an object a line."""
    done = program("tail", "./good", "-n", "3", folder=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["147", "148", "149"]
    assert lines[-1] == "run finished"
    plain = [
        json.loads(line) for line in program("tail", "./bad", "-n", "500", "--json", folder=folder).stdout.splitlines()
    ]
    assert [line["alert"] for line in plain if "alert" in line] == ["spike"]
    assert sum("total_norm" in line for line in plain) == 300


def test_tail_follows_a_run_that_goes_on(tmp_path: Path):
    """Steps and alerts appear while the run is written, and tail ends with it."""
    records = list(training(steps=120, spike_at=100))
    paths = RunPaths(tmp_path / "live")
    paths.root.mkdir()
    write_json(paths.manifest, Manifest(run_id="live", created_ns=1, owner=this_process()))
    writer = JournalWriter.create(paths.journal, "live")
    at = len(records) - 60
    for record in records[:at]:
        writer.append(record)
    process = subprocess.Popen(
        [sys.executable, "-m", "tracker_bridge", "tail", "./live", "-n", "1"],
        cwd=tmp_path,
        env=_environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    guard = threading.Timer(90, process.kill)
    guard.start()
    try:
        assert process.stdout.readline().startswith("step ")  # it has caught up; what follows is news
        for record in records[at:]:
            writer.append(record)
        rest = process.stdout.read()
        assert process.wait() == 0
    finally:
        guard.cancel()
        process.kill()
        process.communicate()
        writer.close()
    assert "step 100  warning  spike" in rest
    assert rest.splitlines()[-1] == "run finished"


def test_damage_is_told_by_status_and_diagnose(folder: Path):
    """A flipped byte costs one record; both commands say how many, where and why, also as JSON."""
    segment = next((folder / "good" / "journal").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    told = program("diagnose", "./good", folder=folder)
    assert re.search(r"1 record is gone after step \d+ \(record \d+\): damaged on disk", told.stdout)
    (lost,) = json.loads(program("diagnose", "./good", "--json", folder=folder).stdout)["lost"]
    assert (lost["count"], lost["reason"]) == (1, "corrupt")
    assert 0 < lost["after_step"] < 150
    shown = program("status", "./good", folder=folder)
    assert f"1 record is gone (record {lost['sequence']}): damaged on disk" in shown.stdout
    (run,) = json.loads(program("status", "./good", "--json", folder=folder).stdout)["runs"]
    assert run["lost"] == [f"1 record is gone (record {lost['sequence']}): damaged on disk"]
    assert "gone" not in program("status", "./bad", folder=folder).stdout
