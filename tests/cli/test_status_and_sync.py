"""`status` and `sync` on runs that a training process has left behind."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import EXPECTED_LOSSES, MakeRun, Program, losses, plain_environment
from tracker_bridge.rundir import FileLock


def test_sync_without_arguments_delivers_every_unfinished_run(
    program: Program, make_run: MakeRun, tmp_path: Path
) -> None:
    """What `status` shows as pending is in the trackers after `sync`, for finished, failed and crashed runs alike."""
    make_run("one", {"jsonl": {}, "second": {"adapter": "jsonl", "path": "second.jsonl"}})
    make_run("two", {"jsonl": {}}, status="failed")
    make_run("three", {"jsonl": {}}, status="running")
    before = program("status", "--json")
    assert before.code == 1
    assert {
        (run["id"], run["status"], backend["name"], backend["state"], backend["pending"])
        for run in before.json["runs"]
        for backend in run["backends"]
    } == {
        ("one", "finished", "jsonl", "waiting", 21),
        ("one", "finished", "second", "waiting", 21),
        ("two", "failed", "jsonl", "waiting", 21),
        ("three", "crashed", "jsonl", "waiting", 20),
    }
    done = program("sync")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("Everything is delivered.\n")
    for name in ("one", "two", "three", "second"):
        assert losses(tmp_path / f"{name}.jsonl") == EXPECTED_LOSSES
    after = program("status", "--json")
    assert after.code == 0
    assert {backend["state"] for run in after.json["runs"] for backend in run["backends"]} == {"delivered"}


def test_sync_of_a_delivered_run_changes_nothing(program: Program, make_run: MakeRun, tmp_path: Path) -> None:
    """A second `sync` says that nothing is pending and leaves the tracker's file as it is."""
    make_run("one", {"jsonl": {}})
    assert program("sync", "one").code == 0
    content = (tmp_path / "one.jsonl").read_bytes()
    assert program("sync").out == f"Nothing is pending in {tmp_path / 'tracker_bridge_runs'}.\n"
    again = program("sync", "one")
    assert (again.code, "one has nothing pending." in again.out) == (0, True)
    assert (tmp_path / "one.jsonl").read_bytes() == content


def test_sync_takes_ids_and_paths_each_once(program: Program, make_run: MakeRun, tmp_path: Path) -> None:
    """Only the named runs are delivered; a run named twice is delivered once."""
    one = make_run("one", {"jsonl": {}})
    make_run("two", {"jsonl": {}})
    done = program("sync", "one", str(one.root), "--json")
    assert (done.code, [run["run"]["id"] for run in done.json["runs"]]) == (0, ["one"])
    assert not (tmp_path / "two.jsonl").exists()


def test_an_unknown_run_names_the_nearest_one(program: Program, make_run: MakeRun, tmp_path: Path) -> None:
    """A mistyped id is a usage error with the id that was probably meant."""
    make_run("bert-base-1", {"jsonl": {}})
    for command in ("status", "sync"):
        done = program(command, "bert-bsae-1")
        assert (done.code, done.out) == (2, "")
        assert done.err == (
            f"error: there is no run 'bert-bsae-1', neither at this path nor in {tmp_path / 'tracker_bridge_runs'}; "
            "did you mean 'bert-base-1'?\n"
        )


def test_a_backend_that_fails_stays_pending_and_its_error_is_shown(
    program: Program, make_run: MakeRun, tmp_path: Path
) -> None:
    """One backend that cannot be opened leaves the other delivered, exit status 1, and its error in `status`."""
    make_run("one", {"broken": {"adapter": "jsonl", "path": "no-folder/x.jsonl"}, "jsonl": {"path": "one.jsonl"}})
    (tmp_path / "no-folder").write_text("a file in the folder's place")
    done = program("sync", "--timeout", "2")
    assert done.code == 1
    assert "1 run of 1 not wholly delivered. What is left stays on disk." in done.out
    assert losses(tmp_path / "one.jsonl") == EXPECTED_LOSSES
    status = program("status", "one", "--json")
    broken, good = status.json["runs"][0]["backends"]
    assert (status.code, broken["pending"], broken["state"], good["state"]) == (1, 21, "waiting", "delivered")
    assert "no-folder" in broken["last_error"]
    assert "no-folder" in program("status").out
    (tmp_path / "no-folder").unlink()
    (tmp_path / "no-folder").mkdir()
    assert program("sync").code == 0
    assert losses(tmp_path / "no-folder" / "x.jsonl") == EXPECTED_LOSSES


def test_a_missing_variable_of_one_backend_does_not_stop_another(
    program: Program, make_run: MakeRun, tmp_path: Path
) -> None:
    """The backend whose reference cannot be resolved is named and left out, the other is delivered."""
    backends = {"needy": {"adapter": "jsonl", "path": "${env:NEEDED_PATH}"}, "jsonl": {"path": "one.jsonl"}}
    make_run("one", backends, environ={"NEEDED_PATH": "needy.jsonl"})
    done = program("sync")
    assert done.code == 1
    assert "backends.needy.path: the environment variable NEEDED_PATH is not set" in done.out
    assert losses(tmp_path / "one.jsonl") == EXPECTED_LOSSES
    assert program("sync", NEEDED_PATH="needy.jsonl").code == 0
    assert losses(tmp_path / "needy.jsonl") == EXPECTED_LOSSES


def test_a_run_that_is_being_delivered_is_left_alone(program: Program, make_run: MakeRun, tmp_path: Path) -> None:
    """While somebody holds the delivery lock, `sync` says so and does not deliver a second time."""
    paths = make_run("one", {"jsonl": {}})
    with FileLock(paths.delivery_lock):
        done = program("sync", "one")
        shown = program("status", "--json").json["runs"][0]
    assert (done.code, "one is being delivered already." in done.out) == (1, True)
    assert shown["delivering"] is True
    assert not (tmp_path / "one.jsonl").exists()


def test_an_empty_folder_is_no_problem(program: Program, tmp_path: Path) -> None:
    """Without runs, both commands say so and succeed."""
    folder = tmp_path / "tracker_bridge_runs"
    assert program("status").out == f"No runs in {folder}.\n"
    assert program("sync").out == f"Nothing is pending in {folder}.\n"
    assert program("status", "--json").json == {"dir": str(folder), "runs": [], "unreadable": []}


def test_an_unreadable_run_is_reported_beside_the_others(program: Program, make_run: MakeRun) -> None:
    """A damaged `run.json` gives one sentence and exit status 1, and hides no other run."""
    make_run("good", {"jsonl": {}})
    bad = make_run("bad", {"jsonl": {}})
    bad.manifest.write_text("{")
    done = program("status")
    assert done.code == 1
    assert "good" in done.out
    assert done.err.startswith(f"error: {bad.root} is not a tracker_bridge run directory: ")
    assert done.err.count("\n") == 1


def test_the_folder_comes_from_option_environment_or_config(
    program: Program, make_run: MakeRun, tmp_path: Path
) -> None:
    """`--dir`, `TRACKER_BRIDGE_DIR`, `--config` and the configuration of the working directory all lead to the runs."""
    make_run("one", {"jsonl": {}})
    (tmp_path / "tracker_bridge_runs").rename(tmp_path / "moved")
    (tmp_path / "c.yaml").write_text("queue: {dir: moved}\nbackends: {no_such: {}}")
    assert program("status", "--json").json["runs"] == []
    for arguments, environ in (
        (("--dir", "moved"), {}),
        ((), {"TRACKER_BRIDGE_DIR": "moved"}),
        (("--config", "c.yaml"), {}),
        ((), {"TRACKER_BRIDGE_CONFIG": "c.yaml"}),
    ):
        shown = program("status", "--json", *arguments, **environ).json
        assert [run["id"] for run in shown["runs"]] == ["one"], (arguments, environ)
    assert "tracker-bridge sync --dir " in program("status", "--dir", "moved").out


def test_foreign_texts_are_shown_and_never_obeyed(program: Program, make_run: MakeRun) -> None:
    """Markup, escape sequences and direction marks in a name are written out, in tables and in JSON."""
    name = "[red]evil[/red] \x1b[31m\x07\u202egnp.exe :smile:"
    paths = make_run("one", {"jsonl": {}}, name=name, project="\x9b2J", steps=1)
    paths.notices.write_text("jsonl: \x1b]0;title\x07 [bold]\n")
    for arguments in ((), ("one",)):
        out = program("status", *arguments).out
        assert r"[red]evil[/red] \x1b[31m\x07\u202egnp.exe :smile:" in out
        assert [character for character in out if not character.isprintable() and character != "\n"] == []
    raw = program("status", "--json")
    assert raw.out.isascii()
    assert raw.json["runs"][0]["name"] == name


def on_terminal(arguments: list[str], cwd: Path, **environ: str) -> str:
    """What the program writes to a terminal of 100 columns that is both its outputs."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tracker_bridge", *arguments],
        cwd=cwd,
        env=plain_environment(TERM="xterm-256color", COLUMNS="100", **environ),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    parts = []
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux answers EIO once the last writer has closed the terminal
            break
        if not part:
            break
        parts.append(part)
    os.close(master)
    process.wait(60)
    return b"".join(parts).decode()


def test_colour_and_progress_are_for_terminals_only(program: Program, make_run: MakeRun, tmp_path: Path) -> None:
    """On a terminal there is a progress bar and colour, with NO_COLOR no colour, in a pipe neither."""
    for name in ("pipe", "terminal", "no-color"):
        make_run(name, {"jsonl": {}})
    piped = program("sync", "pipe")
    assert "\x1b" not in piped.out + piped.err
    shown = on_terminal(["sync", "terminal"], tmp_path)
    assert "terminal > jsonl" in shown
    assert "\x1b[32m" in shown
    plain = on_terminal(["sync", "no-color"], tmp_path, NO_COLOR="1")
    assert "Everything is delivered." in plain
    assert not any(f"\x1b[{code}m" in plain for code in (*range(31, 38), *range(91, 98)))


@pytest.mark.parametrize("command", [["status"], ["sync"], ["backends"], ["doctor"]])
def test_json_is_the_whole_standard_output(
    program: Program, make_run: MakeRun, tmp_path: Path, command: list[str]
) -> None:
    """With `--json` standard output is one JSON document, also on a terminal."""
    make_run("one", {"jsonl": {}})
    (tmp_path / "tracker_bridge.yaml").write_text("backends: [jsonl]")
    assert isinstance(program(*command, "--json").json, dict)
    if command != ["sync"]:
        assert isinstance(json.loads(on_terminal([*command, "--json"], tmp_path)), dict)
