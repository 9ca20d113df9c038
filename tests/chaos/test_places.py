"""Odd places and worlds: copied and removed run directories, a clock that jumps, worker processes of a data loader."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests import scripts
from tests.waiting import until
from tracker_bridge.rundir import RunPaths, load_state

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

SYNC = "import sys; from tracker_bridge.cli import main; sys.exit(main(['sync', *sys.argv[1:]]))"


def test_a_run_directory_copied_to_another_machine_is_delivered_from_there(tmp_path: Path) -> None:
    """The directory is all there is: `sync` of a copy, with another host's name in it, delivers everything."""
    scripts.run(
        tmp_path,
        """
import os, signal
import tracker_bridge as bridge
run = bridge.init(backends={"mlflow": {"tracking_uri": "http://127.0.0.1:9"}}, run_id="r")
for step in range(50):
    run.log_metrics({"x": float(step)}, step=step)
os.kill(run._channel._process.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "tracker_bridge_runs" / "r", elsewhere / "r")
    manifest = elsewhere / "r" / "run.json"
    document = json.loads(manifest.read_text())
    document["owner"]["host"] = "another-machine"
    document["config"]["backends"] = {"out": {"adapter": "jsonl", "path": str(elsewhere / "out.jsonl"), "route": {}}}
    manifest.write_text(json.dumps(document))
    done = scripts.run(elsewhere, SYNC, str(elsewhere / "r"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert scripts.metrics(elsewhere / "out.jsonl", "x") == [(step, float(step)) for step in range(50)]


def test_a_run_directory_that_is_removed_costs_no_training(tmp_path: Path) -> None:
    """Someone deletes the queue directory during the run: no exception, and the loss is told."""
    done = scripts.run(
        tmp_path,
        """
import shutil, time
import tracker_bridge as bridge
run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r")
run.log_metrics({"x": 0.0}, step=0)
run.flush(20)
shutil.rmtree("tracker_bridge_runs")
for step in range(1, 60000):
    run.log_metrics({"x": 1.0, "name that takes room": 1.0}, step=step)
run.log_params({"late": 1})
run.log_artifact(__file__)
run.close(timeout=2)
print("trained to the end")
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "trained to the end"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_run_whose_directory_is_gone_ends_at_once_and_counts_what_went_with_it(tmp_path: Path, mode: str) -> None:
    """An adapter that keeps files there cannot go on: no waiting (naive: all of `close_timeout`), all is counted."""
    done = scripts.run(
        tmp_path,
        f"""
import json, shutil, time
import tracker_bridge as bridge
backends = {{"mlflow": {{"tracking_uri": "sqlite:///mlflow.db"}}, "jsonl": {{"path": "out.jsonl"}}}}
run = bridge.init({{"backends": backends, "delivery": {{"mode": {mode!r}, "close_timeout": 80}}}}, run_id="r")
for step in range(50):
    run.log_metrics({{"x": float(step)}}, step=step)
assert run.flush(60)
shutil.rmtree("tracker_bridge_runs")
for step in range(50, 2050):
    run.log_metrics({{f"a name that takes room {{n}}": 1.0 for n in range(30)}}, step=step)
begun = time.monotonic()
delivery = run.close()
print(json.dumps([time.monotonic() - begun, dict(delivery.not_written), delivery.complete, delivery.command]))
""",
        timeout=150,
    )
    seconds, not_written, complete, command = json.loads(done.stdout)
    assert seconds < 30, done.stderr
    assert set(not_written) == {"io_error", "directory_removed"}
    assert not_written["directory_removed"] > 50
    # With the beginning and the end of the run; the journal's own note of what it dropped may have got a number, too.
    assert 0 <= sum(not_written.values()) - (2050 + 2) <= 1
    assert (complete, command) == (False, None)
    removed = f"gone with the run directory, delivered or not: {not_written['directory_removed']}"
    assert removed in done.stderr
    assert f"never written to disk: {not_written['io_error']} (io_error)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "tracker_bridge_runs").exists()
    until(lambda: not scripts.processes_of(tmp_path), 30, "no process is left")


@pytest.mark.parametrize("ended_by", ["SIGKILL of the script", "SIGTERM to both"])
def test_delivery_of_a_run_whose_directory_and_process_are_gone_ends(tmp_path: Path, ended_by: str) -> None:
    """There is no `run.json` to write the end to: the delivery process ends all the same (naive: `run.json` first)."""
    with scripts.start(
        tmp_path,
        """
import shutil, time
import tracker_bridge as bridge
backends = {"jsonl": {"path": "out.jsonl"}}
run = bridge.init({"backends": backends, "delivery": {"close_timeout": 80}}, run_id="r")
run.log_metrics({"x": 0.0}, step=0)
assert run.flush(60)
shutil.rmtree("tracker_bridge_runs")
run.log_metrics({"x": 1.0}, step=1)
print(run._channel._process.pid, flush=True)
time.sleep(100)
""",
    ) as process:
        assert process.stdout is not None
        delivery = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM if "TERM" in ended_by else signal.SIGKILL)
        if "TERM" in ended_by:
            os.kill(delivery, signal.SIGTERM)
    until(lambda: not scripts.processes_of(tmp_path), 30, "no process is left")
    assert scripts.metrics(tmp_path / "out.jsonl", "x") == [(0, 0.0), (1, 1.0)]
    assert scripts.statuses(tmp_path / "out.jsonl") == ["killed" if "TERM" in ended_by else "crashed"]


def test_a_clock_that_jumps_changes_neither_order_nor_completeness(tmp_path: Path) -> None:
    """Steps order the records, not times; a clock set back by a year does not stop what is done once a second."""
    done = scripts.run(
        tmp_path,
        """
import time
import tracker_bridge as bridge
real, offset = time.time_ns, 0
time.time_ns = lambda: real() + offset
run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r")
year = 365 * 86400 * 10**9
looks = []
run._look = (lambda look: lambda now: (looks.append(now), look(now)))(run._look)
for step in range(400):
    offset = {100: -year, 200: year, 300: -10**9}.get(step, offset)
    run.log_metrics({"x": float(step)}, step=step)
run.close()
print(len(looks))
""",
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3
    assert scripts.metrics(tmp_path / "out.jsonl", "x") == [(step, float(step)) for step in range(400)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_that_log_exit_or_raise_leave_the_run_alone(tmp_path: Path, method: str) -> None:
    """Workers of a real DataLoader: what they log is not the run's, their end is not the run's end, nobody hangs."""
    done = scripts.run(
        tmp_path,
        f"""
import os, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset
import tracker_bridge as bridge
warnings.simplefilter("ignore")
class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        run = bridge.current()
        if run is not None:
            run.log_metrics({{"worker": 1.0}})
        if index == 6 and mode == "raise":
            raise ValueError("a broken sample")
        if index == 6 and mode == "exit":
            os._exit(3)
        return torch.tensor(float(index))
mode = "log"
def main():
    global mode
    run = bridge.init(backends={{"jsonl": {{"path": "out.jsonl"}}}}, run_id="r")
    for number, mode in enumerate(("log", "raise", "exit")):
        try:
            for batch in DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context={method!r}):
                run.log_metrics({{"loss": batch.mean()}})
        except (ValueError, RuntimeError) as error:
            run.log_metrics({{"failed": float(number)}})
    run.close()
if __name__ == "__main__":
    main()
""",
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "out.jsonl"
    assert len(scripts.metrics(path, "loss")) >= 4
    if method == "fork":  # spawned workers import the script anew and see its first mode only
        assert [value for _, value in scripts.metrics(path, "failed")] == [1.0, 2.0]
    assert scripts.metrics(path, "worker") == []
    assert scripts.statuses(path) == ["finished"]
    until(lambda: not scripts.processes_of(tmp_path), 30, "no process is left")


def test_two_processes_in_one_queue_directory_stay_apart(tmp_path: Path) -> None:
    """Ten processes begin runs in one directory at once: ten runs, each complete."""
    text = """
import sys
import tracker_bridge as bridge
with bridge.init(backends={"jsonl": {"path": "{run_id}.jsonl"}}) as run:
    for step in range(20):
        run.log_metrics({"x": float(sys.argv[1])}, step=step)
"""
    started = [scripts.start(tmp_path, text, str(number)) for number in range(10)]
    for process in started:
        assert process.communicate(timeout=120)[1] == ""
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 10
    found = sorted({value for _, value in scripts.metrics(file, "x")} for file in files)
    assert sorted(value for values in found for value in values) == [float(number) for number in range(10)]
    for root in (tmp_path / "tracker_bridge_runs").iterdir():
        assert load_state(RunPaths(root), "jsonl").health == "closed"
    assert os.listdir(tmp_path / "tracker_bridge_runs")
