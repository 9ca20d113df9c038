"""Every fault that users report of a server, on a real MLflow server behind a proxy: delayed at most, never lost."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import scripts
from tests.servers import free_port, mlflow_server
from tests.standins.fault_proxy import FaultProxy
from tests.standins.loopback import Fault, FaultHook, Reply, Request
from tests.waiting import until
from tracker_bridge.rundir import RunPaths, load_state

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
__all__ = ["mlflow_server"]

SCRIPT = """
import json, sys, time
import tracker_bridge as bridge
backends = {"mlflow": {"tracking_uri": sys.argv[1], "experiment_name": sys.argv[2]}, "jsonl": {"path": "out.jsonl"}}
run = bridge.init(backends=backends, run_id="r", params={"lr": 0.1}, tags=["t"])
longest = 0.0
for step in range(300):
    begun = time.perf_counter()
    run.log_metrics({"loss": float(step), "acc": 0.5}, step=step)
    longest = max(longest, time.perf_counter() - begun)
    if step % 100 == 0:
        run.flush(1)
assert longest < 1.0, longest
delivery = run.close(timeout=float(sys.argv[3]))
print(json.dumps({name: [one.pending, one.dropped] for name, one in delivery.items()}))
"""


def on_batches(fault: Callable[[int], Fault | None]) -> FaultHook:
    """A fault for the calls that log a batch, by their number from 1."""

    def hook(request: Request) -> Fault | None:
        return fault(request.number) if request.kind.endswith("runs/log-batch") else None

    return hook


def json_error(status: int, code: str) -> Fault:
    body = json.dumps({"error_code": code, "message": "as the test wants"}).encode()
    return Fault(Reply(status, body, {"Content-Type": "application/json"}))


FAULTS: dict[str, FaultHook] = {
    "connection reset, every second time": on_batches(lambda n: Fault(drop="before") if n % 2 else None),
    "reply lost after it was applied": on_batches(lambda n: Fault(drop="after") if n <= 3 else None),
    "429 with Retry-After": on_batches(lambda n: Fault(Reply(429, b"{}", {"Retry-After": "1"})) if n <= 2 else None),
    "500, then well": on_batches(lambda n: json_error(500, "INTERNAL_ERROR") if n <= 2 else None),
    "503, then well": on_batches(lambda n: Fault(Reply(503, b"busy")) if n <= 2 else None),
    "slow": on_batches(lambda _n: Fault(delay=0.3)),
    "a 404 that passes": on_batches(lambda n: json_error(404, "RESOURCE_DOES_NOT_EXIST") if n == 1 else None),
    "a 403 that passes": on_batches(lambda n: json_error(403, "PERMISSION_DENIED") if n == 1 else None),
    "down at the start": lambda request: Fault(drop="before") if request.number <= 2 else None,
}


@pytest.fixture
def proxy(mlflow_server: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(mlflow_server)
    yield proxy
    proxy.close()


def stored(url: str, experiment_name: str) -> tuple[list[tuple[int, float]], str]:
    from mlflow import MlflowClient

    client = MlflowClient(url)
    experiment = client.get_experiment_by_name(experiment_name)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["lr"] == "0.1"
    history = client.get_metric_history(run.info.run_id, "loss")
    return [(point.step, point.value) for point in history], run.info.status


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_costs_nothing(name: str, tmp_path: Path, proxy: FaultProxy, mlflow_server: str) -> None:
    """After the fault everything is there, once, in one run with the right status; the other backend never noticed."""
    proxy.faults = FAULTS[name]
    done = scripts.run(tmp_path, SCRIPT, proxy.url, name, "60", timeout=150)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"mlflow": [0, {}], "jsonl": [0, {}]}, done.stderr
    expected = [(step, float(step)) for step in range(300)]
    assert stored(mlflow_server, name) == (expected, "FINISHED")
    assert scripts.metrics(tmp_path / "out.jsonl", "loss") == expected


def test_one_refused_record_blocks_nothing_behind_it(tmp_path: Path, proxy: FaultProxy, mlflow_server: str) -> None:
    """A server that refuses a batch for one bad record gets all the others; the bad one is counted and kept."""

    def refuse(request: Request) -> Fault | None:
        if request.kind.endswith("runs/log-batch"):
            steps = [point["step"] for point in json.loads(request.body).get("metrics", ())]
            if 123 in map(int, steps):
                return json_error(400, "INVALID_PARAMETER_VALUE")
        return None

    proxy.faults = refuse
    done = scripts.run(tmp_path, SCRIPT, proxy.url, "refused", "100", timeout=150)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["jsonl"] == [0, {}]
    assert counts["mlflow"][0] == 0
    assert sum(counts["mlflow"][1].values()) == 2, "the two values of one record"
    points, status = stored(mlflow_server, "refused")
    assert points == [(step, float(step)) for step in range(300) if step != 123]
    assert status == "FINISHED"
    paths = RunPaths(tmp_path / "tracker_bridge_runs" / "r")
    (kept,) = paths.rejected("mlflow").read_text().splitlines()
    assert json.loads(kept)["step"] == 123


def test_a_server_that_goes_down_during_the_run_and_comes_back(tmp_path: Path, mlflow_server: str) -> None:
    """The state says so while it is down, and everything arrives when it is back, without a command."""
    port = free_port()
    script = """
import sys, time
import tracker_bridge as bridge
run = bridge.init(backends={"mlflow": {"tracking_uri": sys.argv[1], "experiment_name": "outage"}}, run_id="r",
                  params={"lr": 0.1})
step = 0
while True:
    run.log_metrics({"loss": float(step)}, step=step)
    step += 1
    time.sleep(0.01)
    if step == 900:
        break
print(run.close(timeout=60)["mlflow"].pending)
"""
    first = FaultProxy(mlflow_server, port=port)
    paths = RunPaths(tmp_path / "tracker_bridge_runs" / "r")
    with scripts.start(tmp_path, script, first.url) as process:
        until(lambda: load_state(paths, "mlflow").sent > 20, 60, "the first records arrive")
        first.close()
        until(lambda: load_state(paths, "mlflow").health in ("retrying", "down"), 60, "the outage is noticed")
        assert load_state(paths, "mlflow").last_error
        second = FaultProxy(mlflow_server, port=port)
        try:
            until(lambda: load_state(paths, "mlflow").health in ("healthy", "closed"), 90, "it recovers by itself")
            out, err = process.communicate(timeout=120)
        finally:
            second.close()
    assert process.returncode == 0, err
    assert out.strip() == "0", err
    assert stored(mlflow_server, "outage")[0] == [(step, float(step)) for step in range(900)]


@pytest.mark.parametrize("method", ["open", "write", "flush", "close"])
def test_an_sdk_that_hangs_anywhere_bounds_nothing_but_itself(method: str, tmp_path: Path) -> None:
    """Whatever call of an SDK hangs: the other backend is complete, `close` returns in time, no process stays."""
    (tmp_path / "hanging_adapter.py").write_text(
        f"""
import time
from typing import ClassVar
from tracker_bridge.adapter import Adapter, Capabilities, Opened, Options
class HangingOptions(Options, frozen=True, kw_only=True):
    pass
class Hanging(Adapter[HangingOptions]):
    options_type = HangingOptions
    capabilities: ClassVar[Capabilities] = Capabilities()
    def _maybe(self, name):
        if name == {method!r}:
            time.sleep(10**6)
    def open(self, run):
        self._maybe("open"); return Opened()
    def write(self, batch):
        self._maybe("write")
    def flush(self):
        self._maybe("flush")
    def close(self, status):
        self._maybe("close")
"""
    )
    info = tmp_path / "hanging-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tracker_bridge.adapters]\nhanging = hanging_adapter:Hanging\n")
    done = scripts.run(
        tmp_path,
        """
import json, time
import tracker_bridge as bridge
run = bridge.init(backends={"hanging": {}, "jsonl": {"path": "out.jsonl"}}, run_id="r")
for step in range(100):
    run.log_metrics({"x": 1.0}, step=step)
begun = time.monotonic()
delivery = run.close(timeout=2)
print(json.dumps([time.monotonic() - begun, delivery["jsonl"].pending, delivery["jsonl"].health]))
""",
        PYTHONPATH=f"{scripts.REPOSITORY}:{tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    seconds, pending, health = json.loads(done.stdout)
    assert seconds <= 2 + 1 + 1
    assert (pending, health) == (0, "closed")
    assert len(scripts.metrics(tmp_path / "out.jsonl", "x")) == 100
    assert not scripts.processes_of(tmp_path)


def test_many_threads_and_many_faults_at_once(tmp_path: Path, proxy: FaultProxy, mlflow_server: str) -> None:
    """Two runs at a time against one flaky server stay apart and lose nothing."""
    numbers = itertools.count()
    lock = threading.Lock()

    def flaky(_request: Request) -> Fault | None:
        with lock:
            number = next(numbers)
        return {0: Fault(Reply(503, b"")), 5: Fault(drop="after")}.get(number % 11)

    proxy.faults = flaky
    done = scripts.run(
        tmp_path,
        """
import json, sys, threading
import tracker_bridge as bridge
backends = {"mlflow": {"tracking_uri": sys.argv[1], "experiment_name": "two"}}
runs = [bridge.init(backends=backends, run_id=f"r{n}", name=f"r{n}", params={"lr": 0.1, "n": n}) for n in range(2)]
for step in range(200):
    for n, run in enumerate(runs):
        run.log_metrics({"loss": float(n * 1000 + step)}, step=step)
threads = [threading.Thread(target=run.close, kwargs={"timeout": 90}) for run in runs]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([run.close()["mlflow"].pending for run in runs]))
""",
        proxy.url,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 0], done.stderr
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("two")
    assert experiment is not None
    found = {run.data.params["n"]: run for run in client.search_runs([experiment.experiment_id])}
    assert sorted(found) == ["0", "1"], "a lost reply to create-run must not leave a second run"
    for n, run in found.items():
        points = client.get_metric_history(run.info.run_id, "loss")
        assert [(p.step, p.value) for p in points] == [(s, float(int(n) * 1000 + s)) for s in range(200)]
