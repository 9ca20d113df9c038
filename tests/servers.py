"""Real trackers' servers for tests, on free loopback ports, each with its own folder and ended with its fixture.

Import the fixtures by name into a test module or a conftest: `tensorboard_server` (a running `tensorboard` and its data
API) and `mlflow_server` (a running `mlflow server` on sqlite), once for each test session; `mlflow_sqlite` (a
fresh sqlite tracking URI).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

START_SECONDS = 90.0
# A cold `mlflow server` migrates its database first: 10 to 15 s on an idle machine.


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def get(url: str, timeout: float = 30.0) -> bytes:
    """The body of a GET."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        body: bytes = answer.read()
        return body


@contextlib.contextmanager
def server(command: list[str], health: str, log: Path, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run `command` in a session of its own until the block ends; the block begins when GET `health` answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    try:

        def ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{command[:3]} ended at once:\n{log.read_text()[-4000:]}")
            try:
                get(health, 5.0)
            except (OSError, urllib.error.URLError):
                return False
            return True

        until(ready, START_SECONDS, f"{command[:3]} answers")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True)
class TensorBoardServer:
    """A `tensorboard` process that reads everything below `logdir` (a test puts its own folder there)."""

    logdir: Path
    url: str

    def data(self, path: str, **query: str) -> Any:
        """The JSON that GET `/data/<path>` answers; NaN and infinities come as texts."""
        return json.loads(get(f"{self.url}/data/{path}?{urllib.parse.urlencode(query)}"))

    def post(self, path: str, body: Any) -> Any:
        """The JSON that POST `/data/<path>` answers."""
        request = urllib.request.Request(
            f"{self.url}/data/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def run_tensorboard(
    logdir: Path, log: Path, *, reload_seconds: float = 1.0, fast: bool = True
) -> Iterator[TensorBoardServer]:
    """A `tensorboard` on `logdir` as users start it; `fast` is its default reader."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1"),
        *("--port", str(port), "--reload_interval", str(reload_seconds), "--load_fast", "true" if fast else "false"),
        *("--samples_per_plugin", "scalars=1000000,text=1000000,images=1000,histograms=1000"),
    ]
    url = f"http://127.0.0.1:{port}"
    with server(command, f"{url}/data/environment", log):
        yield TensorBoardServer(logdir, url)


@pytest.fixture(scope="session")
def tensorboard_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorBoardServer]:
    """A running `tensorboard` over an empty folder."""
    folder = tmp_path_factory.mktemp("tensorboard")
    (folder / "logs").mkdir()
    with run_tensorboard(folder / "logs", folder / "server.log") as running:
        yield running


MLFLOW_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Five idle processes that poll for jobs cost a tenth of a core each.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""No test talks to anybody, and a server runs nothing that no test needs."""


@contextlib.contextmanager
def run_mlflow(folder: Path, *, port: int | None = None) -> Iterator[str]:
    """A `mlflow server` with its sqlite store and artifacts in `folder`; yields its URL."""
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")),
    ]
    url = f"http://127.0.0.1:{port}"
    with server(command, f"{url}/health", folder / "server.log", MLFLOW_QUIET):
        yield url


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running `mlflow server`."""
    with run_mlflow(tmp_path_factory.mktemp("mlflow_server")) as url:
        yield url


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated sqlite store without runs (making one takes seconds)."""
    folder = tmp_path_factory.mktemp("mlflow_template")
    script = "import sys; from mlflow import MlflowClient; MlflowClient(sys.argv[1]).search_experiments()"
    path = folder / "mlflow.db"
    subprocess.run(
        [sys.executable, "-c", script, f"sqlite:///{path}"],
        check=True,
        cwd=folder,
        capture_output=True,
        env={**os.environ, **MLFLOW_QUIET},
    )
    return path


@pytest.fixture
def mlflow_sqlite(mlflow_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh sqlite tracking URI; artifacts go below `tmp_path` as well."""
    for name, value in MLFLOW_QUIET.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "mlflow.db"
    shutil.copyfile(mlflow_template, path)
    return f"sqlite:///{path}"
