"""SIGKILL at random points, again and again: every record whose call returned arrives exactly once, counted."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import scripts
from tests.servers import TensorBoardServer, mlflow_sqlite, mlflow_template, tensorboard_server
from tests.waiting import until
from tracker_bridge.journal import Entry, scan
from tracker_bridge.records import Metrics
from tracker_bridge.rundir import RunPaths, load_manifest, load_state

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
__all__ = ["mlflow_sqlite", "mlflow_template", "tensorboard_server"]

# One process imports everything once and forks a child for each attempt, so that hundreds of attempts are affordable.
# A child begins or continues the run, logs for ever, and tells its parent the last step whose call has returned.
NURSERY = """
import json, os, random, signal, sys, time
import numpy, msgspec
import tracker_bridge as bridge
from tracker_bridge import config, delivery, run

backends, attempts, seed = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
returned = -1
for attempt in range(attempts):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        bridge_run = bridge.init(backends=backends, run_id="r", resume=True)
        os.write(writing, b"%d %d\\n" % (-1, bridge_run._channel._process.pid))
        step = returned + 1
        while True:
            bridge_run.log_metrics({"x": float(step), "y": 1.0}, step=step)
            os.write(writing, b"%d 0\\n" % step)
            step += 1
            time.sleep(0.0002)
    os.close(writing)
    lines = os.fdopen(reading, "rb")
    delivery_pid = int(lines.readline().split()[1])
    time.sleep(chance.random() * 0.25)
    victims = chance.choice([(pid,), (delivery_pid,), (delivery_pid, pid), (pid, delivery_pid)])
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
        time.sleep(chance.random() * 0.02)
    if pid not in victims:
        time.sleep(chance.random() * 0.1)
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for line in lines.read().splitlines():
        returned = max(returned, int(line.split()[0]))
    lines.close()
print(returned)
"""


def torment(folder: Path, backends: dict[str, object], attempts: int, seed: int) -> int:
    """Run the nursery; returns the last step whose logging call is known to have returned."""
    script = folder / "nursery.py"
    script.write_text(NURSERY)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(backends), str(attempts), str(seed)],
        cwd=folder,
        env=scripts.environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout)


def sync(folder: Path) -> None:
    """`tracker-bridge sync` until nothing is left."""
    done = scripts.run(folder, "import sys; from tracker_bridge.cli import main; sys.exit(main(['sync']))", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def journalled(paths: RunPaths) -> Counter[int]:
    entries = [entry for entry in scan(paths.journal) if isinstance(entry, Entry)]
    return Counter(int(entry.record.step) for entry in entries if isinstance(entry.record, Metrics))


def test_two_hundred_kills_lose_and_repeat_nothing(tmp_path: Path, tensorboard_server: TensorBoardServer) -> None:
    """200 attempts, each ended by SIGKILL to the script, to its delivery process, or both, in either order."""
    logs = tensorboard_server.logdir / tmp_path.name
    backends: dict[str, object] = {"jsonl": {"path": "out.jsonl"}, "tensorboard": {"log_dir": str(logs)}}
    returned = torment(tmp_path, backends, 200, seed=1)
    paths = RunPaths(tmp_path / "tracker_bridge_runs" / "r")
    until(lambda: not scripts.processes_of(tmp_path), 120, "the last delivery process ends")
    sync(tmp_path)
    written = journalled(paths)
    assert set(range(returned + 1)) <= set(written)
    # An attempt begins again at the step that was in flight when the last one was killed.
    assert sum(written.values()) - len(written) <= 200
    assert load_manifest(paths).attempt == 200
    for name in ("jsonl", "tensorboard"):
        assert load_state(paths, name).dropped == {}, name
    stored = Counter(step for step, _ in scripts.metrics(tmp_path / "out.jsonl", "x"))
    assert stored == written

    def visible() -> dict[int, float]:
        runs = [name for name in tensorboard_server.data("runs") if name.startswith(tmp_path.name)]
        found: dict[int, float] = {}
        for name in runs:
            with contextlib.suppress(OSError):
                points = tensorboard_server.data("plugin/scalars/scalars", run=name, tag="x")
                steps = [step for _, step, _ in points]
                assert len(steps) == len(set(steps)), "a step is shown twice"
                found.update({step: value for _, step, value in points})
        return found

    until(lambda: set(visible()) == set(written), 60, "TensorBoard shows every step once")
    assert all(value == float(step) for step, value in visible().items())


def test_kills_with_mlflow_lose_and_repeat_nothing(tmp_path: Path, mlflow_sqlite: str) -> None:
    """The same against MLflow's own store, read with MLflow's own client."""
    from mlflow import MlflowClient

    backends: dict[str, object] = {"mlflow": {"tracking_uri": mlflow_sqlite, "experiment_name": "chaos"}}
    returned = torment(tmp_path, backends, 25, seed=2)
    paths = RunPaths(tmp_path / "tracker_bridge_runs" / "r")
    until(lambda: not scripts.processes_of(tmp_path), 120, "the last delivery process ends")
    sync(tmp_path)
    written = journalled(paths)
    assert set(range(returned + 1)) <= set(written)
    client = MlflowClient(mlflow_sqlite)
    experiment = client.get_experiment_by_name("chaos")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "x")
    assert Counter(point.step for point in history) == written
    assert run.info.status == "FAILED"


def test_kill_between_any_two_system_calls_of_a_delivery(tmp_path: Path) -> None:
    """A delivery process killed after a random number of system calls, many times over one journal, repeats nothing."""
    chance = random.Random(3)
    text = """
    import tracker_bridge as bridge
    run = bridge.init(backends="none", run_id="r")
    for step in range(3000):
        run.log_metrics({"x": float(step)}, step=step)
    run.close()
    """
    scripts.run(tmp_path, text)
    paths = RunPaths(tmp_path / "tracker_bridge_runs" / "r")
    plan = json.dumps(
        {"backends": [{"name": "jsonl", "adapter": "jsonl", "options": {"path": str(tmp_path / "out.jsonl")}}]}
    )
    for _ in range(30):
        process = subprocess.Popen(
            [sys.executable, "-m", "tracker_bridge.delivery", str(paths.root), "--drain"],
            stdin=subprocess.PIPE,
            env=scripts.environment(),
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(plan.encode() + b"\n")
        process.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.15 + chance.random() * 0.5)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        if load_state(paths, "jsonl").health == "closed":
            break
    done = subprocess.run(
        [sys.executable, "-m", "tracker_bridge.delivery", str(paths.root), "--drain"],
        input=plan.encode() + b"\n",
        env=scripts.environment(),
        check=False,
    )
    assert done.returncode == 0
    steps = [step for step, _ in scripts.metrics(tmp_path / "out.jsonl", "x")]
    assert steps == list(range(3000))
