"""The stand-in for neptune_scale: what it carries, what it says, what it refuses, as Neptune does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import scripts
from tracker_bridge.rundir import find_runs, load_manifest

HEAD = """
import json, os, sys, time
from datetime import datetime, timezone
from tracker_bridge.compat.neptune_scale import NeptuneLoggingHandler, Run
from tracker_bridge.compat.neptune_scale.types import File, Histogram
"""


def run_script(folder: Path, text: str, code: int = 0, **more: str) -> list[Path]:
    """Run a script with a `jsonl` file for each run; the files, oldest first."""
    done = scripts.run(folder, HEAD + text, TRACKER_BRIDGE_BACKENDS="jsonl", **more)
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    assert done.returncode == code, done.stderr
    return [folder / f"{run.root.name}.jsonl" for run in find_runs(folder / "tracker_bridge_runs")]


def found(path: Path, kind: str) -> list[Any]:
    """(step, value) of every line of one kind (`text`, `histogram`, `artifact`), or the bare value."""
    return [
        (line["step"], line[kind]) if "step" in line else line[kind] for line in scripts.lines(path) if kind in line
    ]


def test_everything_that_a_run_takes_arrives(tmp_path: Path) -> None:
    """Steps whole and fractional, configs, tags, texts, histograms, files, timestamps; the report counts them."""
    (path,) = run_script(
        tmp_path,
        """
at = datetime(2026, 1, 2, tzinfo=timezone.utc)
with Run(run_id="my run/1".replace("/", "-"), project="team/project", experiment_name="exp") as run:
    run.log_metrics({"loss": 0.5, "acc": True}, step=1)
    run.log_metrics({"loss": 0.25}, step=1.5, timestamp=at)
    run.log_metrics({"loss": float("nan")}, step=2)
    run.log_configs({"lr": 0.1, "nested": {"a": {"b": 1}}, "none": None}, flatten=True, cast_unsupported=True)
    run.add_tags(["a", "b"]); run.remove_tags(["b"]); run.add_tags({"g"}, group_tags=True)
    run.log_string_series({"note": "hello"}, step=3)
    run.log_histograms({"h": Histogram([0, 1, 3], densities=[0.5, 0.25]), "c": Histogram([0, 1], counts=[4])}, step=3)
    run.assign_files({"files/a.txt": b"text", "b": File(__file__, mime_type="text/plain")})
    run.log_files({"c": b"\\x89PNG"}, step=4)
    run.log(step=5, configs={"late": 1}, metrics={"m": 2.0}, tags_add={"sys/tags": ["c"]})
    print(run.wait_for_submission(timeout=30), run.wait_for_processing(), isinstance(run, Run))
run.log_metrics({"after": 1}, step=9)
""",
    )
    assert (tmp_path / "stdout").read_text().split() == ["True", "True", "True"]
    assert scripts.metrics(path, "loss") == [(1, 0.5), (1.5, 0.25), (2, "nan")]
    moment = next(line for line in scripts.lines(path) if line.get("metrics") == {"loss": 0.25})["time_ns"]
    assert moment == 1767312000 * 10**9
    assert [line["params"] for line in scripts.lines(path) if "params" in line] == [
        {"run_id": "my run-1"},
        {"lr": 0.1, "nested/a/b": 1, "none": ""},
        {"late": 1},
    ]
    assert list(found(path, "tags")[-1]) == ["a", "g", "c"]
    assert found(path, "text") == [(3, {"note": "hello"})]
    assert [value for _, value in found(path, "histogram")] == [
        {"h": {"edges": [0.0, 1.0, 3.0], "counts": [0.5, 0.5]}},
        {"c": {"edges": [0.0, 1.0], "counts": [4.0]}},
    ]
    names = [next(iter(value)) for _, value in found(path, "artifact")]
    assert names == ["files/a.txt", "b", "c"]
    assert Path(found(path, "artifact")[0][1]["files/a.txt"]).read_text() == "text"
    assert scripts.metrics(path, "after") == []
    (run_dir,) = find_runs(tmp_path / "tracker_bridge_runs")
    manifest = load_manifest(run_dir)
    assert (manifest.project, manifest.name, manifest.status) == ("team/project", "exp", "finished")
    coverage = json.loads((run_dir.root / "coverage.json").read_text())
    assert coverage["translated"]["log_metrics"] == 4
    assert coverage["degraded"]["group tags"]["count"] == 1
    assert "console capture" in coverage["not carried"]
    stderr = (tmp_path / "stderr").read_text()
    assert "translated   log_metrics 4" in stderr
    assert stderr.count("neptune_scale: group tags: are plain tags") == 1


def test_odd_values_are_dropped_alone_and_previews_are_apart(tmp_path: Path) -> None:
    """A value that is no number costs only itself, is said once and counted; a preview does not stand in the way."""
    (path,) = run_script(
        tmp_path,
        """
run = Run(project="a/b")
for step in range(3):
    run.log_metrics({"good": step, "bad": "text", "none": None}, step=step)
run.log_metrics({"p": 0.5}, step=1, preview=True, preview_completion=0.5)
run.log_metrics({"p": 0.75}, step=1)
os.environ["NEPTUNE_LOG_FAILURE_ACTION"] = "raise"
from tracker_bridge.compat.neptune_scale.exceptions import NeptuneScaleError, NeptuneUnableToLogData
try:
    run.log_metrics({"kept": 1, "bad": "text"}, step=9)
except NeptuneUnableToLogData as error:
    print(isinstance(error, NeptuneScaleError), error)
run.close()
""",
    )
    assert scripts.metrics(path, "good") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert scripts.metrics(path, "p/preview") == [(1, 0.5)]
    assert scripts.metrics(path, "p") == [(1, 0.75)]
    assert scripts.metrics(path, "kept") == []
    assert "metric 'bad' must be a number" in (tmp_path / "stdout").read_text()
    stderr = (tmp_path / "stderr").read_text()
    assert stderr.count("neptune_scale: log_metrics: a value") == 1
    assert "log_metrics: a value 6" in stderr


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("run.log_metrics([1], step=1)", "TypeError"),
        ("run.log_metrics({'a': 1}, step='1')", "TypeError"),
        ("run.log_metrics({'a': 1}, step=-1)", "ValueError"),
        ("run.log_metrics({'a': 1}, step=float('nan'))", "ValueError"),
        ("run.log_metrics({'a': 1}, step=1, timestamp=3.0)", "TypeError"),
        ("run.log_metrics({'a': 1}, step=1, preview_completion=0.5)", "ValueError"),
        ("run.log_configs([1])", "TypeError"),
        ("Run('positional')", "TypeError"),
        ("Run(project='a/b', run_id='x/y')", "ValueError"),
        ("Run(project='a/b', fork_run_id='x')", "ValueError"),
        ("Run(project='a/b', experiment_name='')", "ValueError"),
        ("NeptuneLoggingHandler(run=object())", "TypeError"),
    ],
)
def test_misuse_raises_what_neptune_raises(call: str, error: str) -> None:
    """The kinds of exceptions are those of neptune-scale, also for a disabled run."""
    import tracker_bridge.compat.neptune_scale as stand_in

    run = stand_in.Run(project="a/b", mode="disabled")
    scope = {"run": run, "Run": stand_in.Run, "NeptuneLoggingHandler": stand_in.NeptuneLoggingHandler}
    with pytest.raises(BaseException) as caught:
        eval(call, scope)
    assert type(caught.value).__name__ == error


@pytest.mark.parametrize("mode", ["mode='disabled'", "mode='bogus'"])
def test_a_disabled_run_does_nothing_and_answers(tmp_path: Path, mode: str) -> None:
    """No run directory, no line; every call works; waits are true."""
    runs = run_script(
        tmp_path,
        f"""
with Run(project="a/b", {mode}) as run:
    run.log_metrics({{"a": 1}}, step=1); run.log_configs({{"a": 1}}); run.add_tags(["a"])
    print(run.wait_for_processing(), repr(run.get_run_url()))
""",
    )
    assert runs == []
    assert (tmp_path / "stdout").read_text().split() == ["True", "''"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    run.close()\n    raise", "failed"),
        ("try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    run.close()", "killed"),
        ("with run:\n    raise ValueError('in the block')", "failed"),
        ("try:\n    1 / 0\nfinally:\n    run.close()", "failed"),
        ("run.terminate()", "killed"),
        ("sys.exit(0)", "finished"),
        ("raise ValueError('at the top')", "failed"),
    ],
)
def test_the_end_of_a_run_is_told_as_it_was(tmp_path: Path, ending: str, status: str) -> None:
    """A crash is a crash, also where the script closes the run in its handler; the traceback is there."""
    code = 0 if status != "failed" else 1
    run_script(tmp_path, f"run = Run(project='a/b')\nrun.log_metrics({{'a': 1.0}}, step=1)\n{ending}\n", code)
    (run,) = find_runs(tmp_path / "tracker_bridge_runs")
    assert load_manifest(run).status == status
    if status == "failed":
        stderr = (tmp_path / "stderr").read_text()
        assert stderr.count("Traceback") == 1
        assert "coverage of neptune_scale" in stderr


def test_a_run_id_is_continued_and_two_objects_do_not_fight(tmp_path: Path) -> None:
    """The same id later goes on; at the same time, the second run says that it has an id of its own."""
    paths = run_script(
        tmp_path,
        """
for step in range(2):
    with Run(project="a/b", run_id="same") as run:
        run.log_metrics({"x": step}, step=step)
first = Run(project="a/b", run_id="twice")
second = Run(project="a/b", run_id="twice")
first.log_metrics({"x": 1}, step=0); second.log_metrics({"x": 2}, step=0)
""",
    )
    assert len(paths) == 3
    assert scripts.metrics(tmp_path / "same.jsonl", "x") == [(0, 0.0), (1, 1.0)]
    assert "this process records into run twice-" in (tmp_path / "stderr").read_text()


def test_nothing_of_the_process_is_touched(tmp_path: Path) -> None:
    """Random state, streams, signals, excepthook and the environment are as before; no credential is written."""
    run_script(
        tmp_path,
        """
import random, signal
def state():
    streams = sys.stdin, sys.stdout, sys.stderr
    return random.getstate(), streams, signal.getsignal(2), signal.getsignal(15), sys.excepthook, dict(os.environ)
random.seed(1); before = state()
run = Run(project="a/b", api_token="SECRETTOKEN", enable_console_log_capture=True)
run.log_metrics({"a": 1}, step=1)
run.close()
print(before == state())
print("torch" in sys.modules, "neptune_api" in sys.modules)
""",
        NEPTUNE_API_TOKEN="SECRETVARIABLE",
    )
    assert (tmp_path / "stdout").read_text().split() == ["True", "False", "False"]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "script.py")
    assert b"SECRETTOKEN" not in written
    assert b"SECRETVARIABLE" not in written


def test_log_records_become_a_series_of_texts(tmp_path: Path) -> None:
    """`NeptuneLoggingHandler` numbers lines, at its level, also from threads, without recursion."""
    (path,) = run_script(
        tmp_path,
        """
import logging
run = Run(project="a/b")
logger = logging.getLogger("x"); logger.setLevel(logging.DEBUG)
logger.addHandler(NeptuneLoggingHandler(run=run, level=logging.INFO, attribute_path="logs"))
logger.debug("no"); logger.info("one\\ntwo"); logger.error("three %d", 3)
run.close()
""",
    )
    assert found(path, "text") == [(0, {"logs": "one"}), (1, {"logs": "two"}), (2, {"logs": "three 3"})]


def test_projects_are_names(tmp_path: Path) -> None:
    """`create_project` gives the full name; asking for a list raises, saying why."""
    from tracker_bridge.compat.neptune_scale import projects

    assert projects.create_project("p", workspace="w") == projects.create_project("w/p") == "w/p"
    with pytest.raises(NotImplementedError, match="tracker_bridge stands in"):
        projects.list_projects()
