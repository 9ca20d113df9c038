"""The guarantees of the README, each by its number, on real processes, servers and files."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import scripts
from tests.servers import mlflow_server as mlflow_server
from tests.standins.fault_proxy import FaultProxy
from tests.standins.loopback import Fault
from tests.waiting import until
from tracker_bridge.journal import Entry, scan
from tracker_bridge.records import Metrics
from tracker_bridge.rundir import RunPaths, find_runs, load_manifest, load_state

HEAD = """
import json, os, signal, sys, threading, time
import tracker_bridge as bridge
"""


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


def run_in(folder: Path) -> RunPaths:
    (paths,) = find_runs(folder / "tracker_bridge_runs")
    return paths


def test_guarantee_1_returned_calls_survive_sigkill(tmp_path: Path) -> None:
    """When a logging call has returned, its record is in the journal, wherever SIGKILL hits the process."""
    chance = random.Random(1)
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = (
            HEAD
            + """
run = bridge.init(backends="none", run_id="r")
print("up", flush=True)
for step in range(10**9):
    run.log_metrics({"x": float(step)}, step=step)
    os.write(1, b"%d\\n" % step)
"""
        )
        with scripts.start(folder, script) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            wanted = chance.randrange(1, 3000)
            returned = -1
            while returned < wanted:
                returned = int(process.stdout.readline())
            process.kill()
            told = [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            process.communicate()
        returned = max([returned, *told])
        entries = [entry for entry in scan(run_in(folder).journal) if isinstance(entry, Entry)]
        steps = [entry.record.step for entry in entries if isinstance(entry.record, Metrics)]
        assert steps[: returned + 1] == list(range(returned + 1))


def test_guarantee_2_no_fault_raises_into_or_stalls_training(tmp_path: Path, silent_port: int) -> None:
    """A hanging server, a refusing one and an adapter whose disk is gone: training goes on at its own speed."""
    (tmp_path / "file").write_text("")
    done = scripts.run(
        tmp_path,
        HEAD
        + f"""
backends = {{
    "hanging": {{"adapter": "mlflow", "tracking_uri": "http://127.0.0.1:{silent_port}"}},
    "refusing": {{"adapter": "mlflow", "tracking_uri": "http://127.0.0.1:9"}},
    "broken": {{"adapter": "jsonl", "path": "file/out.jsonl"}},
    "good": {{"adapter": "jsonl", "path": "good.jsonl"}},
}}
run = bridge.init(backends=backends, run_id="r")
longest = 0.0
for step in range(3000):
    begun = time.perf_counter()
    run.log_metrics({{"a": 1.0, "b": 2.0}}, step=step)
    longest = max(longest, time.perf_counter() - begun)
    if step % 10 == 0:
        time.sleep(0.001)
delivery = run.close(timeout=3)
print(json.dumps([longest, {{name: [one.sent, one.pending] for name, one in delivery.items()}}]))
""",
    )
    assert done.returncode == 0, done.stderr
    longest, counts = json.loads(done.stdout)
    # A stall means waiting for the server, which here never ends; scheduling noise of a busy machine is far below.
    assert longest < 2.0
    assert counts["good"] == [3002, 0]
    for name in ("hanging", "refusing", "broken"):
        assert counts[name] == [0, 3002]
    assert len(scripts.metrics(tmp_path / "good.jsonl", "a")) == 3000


def test_guarantee_3_a_dead_backend_delays_no_other_and_later_gets_everything(
    tmp_path: Path, mlflow_server: str
) -> None:
    """One tracker is unreachable during the run; the other is complete at once, and the first one after `sync`."""
    from mlflow import MlflowClient

    proxy = FaultProxy(mlflow_server, lambda _request: Fault(drop="before"))
    try:
        done = scripts.run(
            tmp_path,
            HEAD
            + f"""
backends = {{"mlflow": {{"tracking_uri": "{proxy.url}", "experiment_name": "g3"}}, "jsonl": {{"path": "out.jsonl"}}}}
run = bridge.init(backends=backends, run_id="r")
for step in range(200):
    run.log_metrics({{"loss": float(step)}}, step=step)
print(json.dumps({{name: [one.sent, one.pending] for name, one in run.close(timeout=4).items()}}))
""",
        )
        counts = json.loads(done.stdout)
        assert counts == {"mlflow": [0, 202], "jsonl": [202, 0]}
        assert "tracker-bridge sync" in done.stderr
        proxy.faults = None
        synced = scripts.run(
            tmp_path, "import sys; from tracker_bridge.cli import main; sys.exit(main(['sync']))", timeout=100
        )
        assert synced.returncode == 0, synced.stdout + synced.stderr
    finally:
        proxy.close()
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("g3")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, float(step)) for step in range(200)]
    assert run.info.status == "FINISHED"


def test_guarantee_4_disk_is_bounded_and_every_drop_is_counted(tmp_path: Path) -> None:
    """With max_disk reached and a dead backend, disk stays bounded and sent + pending + dropped is what was logged."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
config = {"backends": {"down": {"adapter": "mlflow", "tracking_uri": "http://127.0.0.1:9"}},
          "queue": {"max_disk": "2MiB"}, "run_id": "r"}
run = bridge.init(config)
largest = 0
for step in range(60000):
    run.log_metrics({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}, step=step)
    if step % 1000 == 0:
        try:
            largest = max(largest, sum(f.stat().st_size for f in (run.dir / "journal").iterdir()))
        except FileNotFoundError:
            pass  # that segment was deleted in this moment
run.close(timeout=0)
print(largest)
""",
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 2 * 1024 * 1024
    good = scripts.run(
        tmp_path,
        "import sys; from tracker_bridge.cli import main; sys.exit(main(['sync', '--json']))",
        TRACKER_BRIDGE_BACKENDS="",
        TRACKER_BRIDGE_DOWN__TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db",
        timeout=110,
    )
    assert good.returncode in (0, 1), good.stderr
    state = load_state(run_in(tmp_path), "down")
    first = next(e for e in scan(run_in(tmp_path).journal) if isinstance(e, Entry) and isinstance(e.record, Metrics))
    assert isinstance(first.record, Metrics)
    assert first.record.step > 0, "the oldest records must have been dropped"
    assert state.dropped["max_disk"] > 0
    # Records that were dropped before anyone could send them: those in front of the first one still held, less the
    # snapshot that restates what they defined.
    assert state.dropped["max_disk"] + state.sent == state.position.sequence
    assert "max_disk" in good.stdout


def test_guarantee_5_exit_is_bounded_and_names_the_command_for_the_rest(tmp_path: Path, silent_port: int) -> None:
    """`close(timeout)` ends in time although the tracker hangs, leaves no process, and says how to deliver the rest."""
    begun = time.monotonic()
    done = scripts.run(
        tmp_path,
        HEAD
        + f"""
run = bridge.init(backends={{"mlflow": {{"tracking_uri": "http://127.0.0.1:{silent_port}"}}}}, run_id="r")
run.log_metrics({{"a": 1.0}})
print(run._channel._process.pid)
begun = time.monotonic()
delivery = run.close(timeout=1)
print(time.monotonic() - begun)
print(delivery["mlflow"].pending)
""",
    )
    pid, seconds, pending = done.stdout.split()
    assert float(seconds) <= 1 + 1 + 1, "close(timeout=t) returns within t + 1 s (and a second for a busy machine)"
    assert time.monotonic() - begun < 30
    assert int(pending) == 3
    assert f"tracker-bridge sync {run_in(tmp_path).root}" in done.stderr
    assert "mlflow" in done.stderr
    assert not Path(f"/proc/{pid}").exists()
    assert not scripts.processes_of(tmp_path)


def test_guarantee_6_sigterm_drains_and_a_vanished_parent_is_noticed(tmp_path: Path) -> None:
    """SIGTERM to the whole job, as a cluster sends it, and SIGKILL to the script alone: all arrives, none is left."""
    for name, kill, status in (("term", "job", "killed"), ("vanish", "script", "crashed")):
        folder = tmp_path / name
        folder.mkdir()
        script = (
            HEAD
            + """
run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r")
run.wait_until_open(20)
for step in range(100):
    run.log_metrics({"x": 1.0}, step=step)
print(run._channel._process.pid, flush=True)
time.sleep(60)
"""
        )
        with scripts.start(folder, script) as process:
            assert process.stdout is not None
            delivery = int(process.stdout.readline())
            if kill == "job":
                os.kill(delivery, signal.SIGTERM)
                process.send_signal(signal.SIGTERM)
            else:
                process.kill()
            process.communicate()
        until(lambda: not scripts.processes_of(folder), what="no process is left")  # noqa: B023
        assert len(scripts.metrics(folder / "out.jsonl", "x")) == 100
        assert scripts.statuses(folder / "out.jsonl") == [status]
        assert load_manifest(run_in(folder)).status == status


def test_guarantee_7_collecting_changes_nothing(tmp_path: Path) -> None:
    """Weights after training are bitwise the same with and without, and so are RNG, handlers, streams and hooks."""
    script = """
import hashlib, random, signal, sys
import numpy, torch
watching = sys.argv[1] == "yes"
random.seed(1); numpy.random.seed(2); torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
before = (sys.stdout, sys.stderr, sys.excepthook, [signal.getsignal(s) for s in (2, 15, 1, 10)])
if watching:
    import tracker_bridge as bridge
    run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r")
    run.watch(model, optimizer)
x, y = torch.randn(32, 8), torch.randn(32, 1)
for step in range(20):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    if watching:
        run.log_metrics({"loss": loss}, step=step)
assert before == (sys.stdout, sys.stderr, sys.excepthook, [signal.getsignal(s) for s in (2, 15, 1, 10)])
assert all(p.grad.grad_fn is None for p in model.parameters())
state = b"".join(p.detach().numpy().tobytes() + p.grad.numpy().tobytes() for p in model.parameters())
rng = repr((random.random(), numpy.random.rand(), torch.rand(1).item()))
print(hashlib.sha256(state).hexdigest(), rng)
"""
    without = scripts.run(tmp_path, script, "no")
    with_it = scripts.run(tmp_path, script, "yes")
    assert with_it.returncode == 0, with_it.stderr
    assert with_it.stdout == without.stdout
    assert with_it.stderr == ""
    assert len(scripts.metrics(tmp_path / "out.jsonl", "gradients/total_norm")) == 20


def test_guarantee_8_secrets_are_never_written(tmp_path: Path, silent_port: int) -> None:
    """Keys in options, environment variables and URLs appear in no file and in no output."""
    secret, token, password = "sk-SECRETSECRETSECRET0123456789abcdef012345", "tok-ENVTOKEN-987654321", "pa55w0rd-in-url"
    done = scripts.run(
        tmp_path,
        HEAD
        + f"""
backends = {{
    "neptune": {{"adapter": "jsonl", "path": "out.jsonl"}},
    "mlflow": {{"tracking_uri": "http://user:{password}@127.0.0.1:{silent_port}"}},
    "other": {{"adapter": "mlflow", "tracking_uri": "${{env:MLFLOW_URL}}"}},
}}
run = bridge.init({{"backends": backends}}, run_id="r")
run.log_metrics({{"a": 1.0}})
run.close(timeout=2)
""",
        MLFLOW_URL=f"http://me:{token}@127.0.0.1:9",
        MLFLOW_TRACKING_TOKEN=secret,
    )
    assert done.returncode == 0, done.stderr
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "script.py")
    for hidden in (secret, token, password):
        assert hidden.encode() not in written, hidden
        assert hidden not in done.stdout + done.stderr
    assert b"${env:MLFLOW_URL}" in written
