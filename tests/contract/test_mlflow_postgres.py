"""MLflow on PostgreSQL, as teams run it: what was logged is there once, and the store stays usable with odd values."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import scripts
from tests.servers import MLFLOW_QUIET, free_port, server

_BIN = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not _BIN, reason="needs PostgreSQL: apt-get install postgresql"),
]


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL of its own in `folder`, on loopback; yields the URL of an empty database."""
    binaries = _BIN[-1].parent
    # PostgreSQL refuses to run as root; Debian's package makes a user for it.
    user = (
        {"user": pwd.getpwnam("postgres").pw_uid, "group": pwd.getpwnam("postgres").pw_gid} if os.getuid() == 0 else {}
    )
    data, port = folder / "data", free_port()
    folder.mkdir()
    if user:
        shutil.chown(folder, "postgres", "postgres")

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=folder, **user)

    run(str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-U", "mlflow", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
    run(str(binaries / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"
    finally:
        run(str(binaries / "pg_ctl"), "-D", str(data), "-w", "-m", "immediate", "stop")


@pytest.fixture
def postgres_folder() -> Iterator[Path]:
    """A short path that the database's own user can reach (pytest's folders are the caller's alone)."""
    folder = Path("/tmp") / f"tracker_bridge-postgres-{os.getpid()}"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_postgres_holds_everything_once_and_stays_usable(tmp_path: Path, postgres_folder: Path) -> None:
    """Two interrupted attempts and a third: every value once, infinities told apart, searching and sorting work."""
    from mlflow import MlflowClient

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(postgres(postgres_folder))
        port = free_port()
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", store, "--artifacts-destination", str(tmp_path / "artifacts")),
        ]
        url = f"http://127.0.0.1:{port}"
        stack.enter_context(server(command, f"{url}/health", tmp_path / "server.log", MLFLOW_QUIET))
        text = f"""
import os, signal, sys, time
import tracker_bridge as bridge
run = bridge.init(backends={{"mlflow": {{"tracking_uri": "{url}", "experiment_name": "pg"}}}}, run_id="r",
                  params={{"lr": 0.1, "nan": float("nan")}}, tags={{"team": "nlp"}})
first = int(sys.argv[1])
for step in range(first, first + 100):
    odd = {{7: float("nan"), 8: float("inf"), 9: -float("inf")}}.get(step % 100, float(step))
    run.log_metrics({{"loss": odd, "acc": float(step)}}, step=step)
if len(sys.argv) > 2:
    time.sleep(float(sys.argv[2]))
    os.kill(run._channel._process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
run.close(timeout=100)
"""
        scripts.run(tmp_path, text, "0", "2.5")
        scripts.run(tmp_path, text, "100", "4")
        done = scripts.run(tmp_path, text, "200", timeout=150)
        assert done.returncode == 0, done.stderr
        client = MlflowClient(url)
        experiment = client.get_experiment_by_name("pg")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id], "metrics.acc > 100", order_by=["metrics.loss DESC"])
        history = client.get_metric_history(run.info.run_id, "acc")
        assert [(point.step, point.value) for point in history] == [(step, float(step)) for step in range(300)]
        losses = client.get_metric_history(run.info.run_id, "loss")
        assert sorted(point.step for point in losses if math.isnan(point.value)) == [7, 107, 207]
        assert not any(abs(point.value) > 1e300 for point in losses), "an infinity must not become a finite number"
        odd = client.get_metric_history(run.info.run_id, "loss/non_finite")
        assert [(p.step, p.value) for p in odd] == [(s + k, v) for s in (0, 100, 200) for k, v in ((8, 2.0), (9, 3.0))]
        assert run.data.tags["team"] == "nlp"
        assert run.info.status == "FINISHED"
