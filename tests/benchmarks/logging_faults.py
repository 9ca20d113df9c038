"""The faults that `bench_logging.py` measures logging calls under: each a context that yields what the run needs.

A fault says which backends the run has, and what happens once a second between two logging calls. Servers run as
processes of their own, at a low priority, as if they were elsewhere. Everything is undone when the context ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tracker_bridge as bridge
from tracker_bridge import registry
from tracker_bridge.journal import _segment

_SERVER = """
import os, sys, threading, time
os.nice(15)
sys.path.insert(0, {root!r})
from tests.standins.fault_proxy import FaultProxy
from tests.standins.loopback import Fault, Reply
faults = {{
    "reset": lambda request: Fault(drop="before"),
    "silent": lambda request: Fault(delay=3600.0),
    "429": lambda request: Fault(Reply(429, b"{{}}", {{"Retry-After": "1"}})),
    "503": lambda request: Fault(Reply(503, b"busy")),
    "400": lambda request: Fault(Reply(400, b'{{"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}}'))
        if request.kind.endswith("log-batch") else None,
    "at times": lambda request: Fault(drop="before") if time.time() % 10 < 5 else None,
}}
proxy = FaultProxy({upstream!r}, faults[{mode!r}])
print(proxy.url, flush=True)
sys.stdin.read()
os._exit(0)
"""
_HANGING = """
import time
from typing import ClassVar
from tracker_bridge.adapter import Adapter, Capabilities, Opened, Options
class HangingOptions(Options, frozen=True, kw_only=True):
    pass
class Hanging(Adapter[HangingOptions]):
    options_type = HangingOptions
    capabilities: ClassVar[Capabilities] = Capabilities()
    def open(self, run):
        return Opened()
    def write(self, batch):
        time.sleep(10**6)
    def flush(self):
        pass
    def close(self, status):
        pass
"""
_TENSORBOARD = {"tensorboard": {"log_dir": "runs"}}


def _nothing(_run: bridge.Run) -> None:
    """Nothing happens."""


@dataclass(frozen=True)
class Fault:
    """`config`: of the run. `strike`: called once a second, between two calls, from the second second on."""

    config: dict[str, Any]
    strike: Callable[[bridge.Run], None] = _nothing


def faults(mlflow: str) -> Mapping[str, Callable[[], AbstractContextManager[Fault]]]:
    """All of them by name. `mlflow`: the URL of a server that is well, for those that need one behind the fault."""
    return {
        "no backend": lambda: _plain({"backends": "none"}),
        "TensorBoard, well": lambda: _plain({"backends": _TENSORBOARD}),
        "MLflow refuses the connection": lambda: _plain(_with_mlflow("http://127.0.0.1:9")),
        "MLflow accepts and never answers": lambda: _server("silent", mlflow),
        "MLflow resets the connection": lambda: _server("reset", mlflow),
        "MLflow says 429": lambda: _server("429", mlflow),
        "MLflow says 503": lambda: _server("503", mlflow),
        "MLflow says 400 to every batch": lambda: _server("400", mlflow),
        "MLflow is there 5 s in 10": lambda: _server("at times", mlflow),
        "an SDK hangs in write": _hanging,
        "wandb-core is stopped": _stopped_core,
        "delivery is killed each second": lambda: _plain({"backends": _TENSORBOARD}, _kill_delivery),
        "disk limit reached": lambda: _plain(
            {"backends": {"mlflow": {"tracking_uri": "http://127.0.0.1:9"}}, "queue": {"max_disk": "4MiB"}}
        ),
        "the disk is full": _full_disk,
        "the directory is removed": lambda: _plain({"backends": _TENSORBOARD}, _remove),
        "the directory cannot be written": lambda: _plain({"backends": _TENSORBOARD, "queue": {"dir": "/proc/runs"}}),
        "no mmap and no fallocate": _no_mmap,
        "the clock jumps each second": _clock,
        "a fork each second, which logs": lambda: _plain({"backends": _TENSORBOARD}, _fork),
        "another run in the directory": _second_run,
    }


@contextlib.contextmanager
def _plain(config: dict[str, Any], strike: Callable[[bridge.Run], None] = _nothing) -> Iterator[Fault]:
    yield Fault(config, strike)


def _with_mlflow(url: str) -> dict[str, Any]:
    return {"backends": {**_TENSORBOARD, "mlflow": {"tracking_uri": url}}}


@contextlib.contextmanager
def _server(mode: str, upstream: str) -> Iterator[Fault]:
    text = _SERVER.format(root=str(Path(__file__).parents[2]), upstream=upstream, mode=mode)
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield Fault(_with_mlflow(process.stdout.readline().strip()))
        process.kill()


@contextlib.contextmanager
def _hanging() -> Iterator[Fault]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hanging_adapter.py").write_text(_HANGING)
        info = Path(folder, "hanging-1.0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[tracker_bridge.adapters]\nhanging = hanging_adapter:Hanging\n")
        sys.path.insert(0, folder)
        registry.adapter_kinds.cache_clear()
        try:
            yield Fault({"backends": {**_TENSORBOARD, "hanging": {}}})
        finally:
            sys.path.remove(folder)


@contextlib.contextmanager
def _stopped_core() -> Iterator[Fault]:
    stopped: list[int] = []

    def stop(run: bridge.Run) -> None:
        delivery = _pid(run)
        if stopped or not delivery:
            return
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if b"wandb-core" in command.split(b"\0", 1)[0] and f"--pid\0{delivery}\0".encode() in command:
                    stopped.append(int(entry.name))
                    os.kill(stopped[0], signal.SIGSTOP)

    try:
        yield Fault({"backends": {**_TENSORBOARD, "wandb": {"mode": "offline"}}}, stop)
        assert stopped, "no wandb-core was found"
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _full_disk() -> Iterator[Fault]:
    """A file system of 6 MiB of its own, which takes root."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", folder], check=True)
        try:
            yield Fault({"backends": _TENSORBOARD, "queue": {"dir": folder}})
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def _no_mmap() -> Iterator[Fault]:
    module: Any = _segment
    kept, allocate = module.mmap, os.posix_fallocate
    module.mmap = None
    del os.posix_fallocate
    try:
        yield Fault({"backends": _TENSORBOARD})
    finally:
        module.mmap, os.posix_fallocate = kept, allocate


@contextlib.contextmanager
def _clock() -> Iterator[Fault]:
    real = time.time_ns
    offset = 0

    def jump(_run: bridge.Run) -> None:
        nonlocal offset
        offset = -offset + 3600 * 10**9 if offset <= 0 else -offset

    time.time_ns = lambda: real() + offset
    try:
        yield Fault({"backends": _TENSORBOARD}, jump)
    finally:
        time.time_ns = real


@contextlib.contextmanager
def _second_run() -> Iterator[Fault]:
    other = bridge.init({"backends": {"tensorboard": {"log_dir": "others"}}})
    try:
        yield Fault({"backends": _TENSORBOARD}, lambda _run: other.log_metrics({"x": 1.0}))
    finally:
        other.close(timeout=1)


def _pid(run: bridge.Run) -> int:
    return int(getattr(getattr(run._channel, "_process", None), "pid", 0))


def _kill_delivery(run: bridge.Run) -> None:
    pid = _pid(run)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _remove(run: bridge.Run) -> None:
    if run.dir is not None:
        shutil.rmtree(run.dir.parent, ignore_errors=True)


def _fork(run: bridge.Run) -> None:
    pid = os.fork()
    if pid == 0:
        run.log_metrics({"from the worker": 1.0})
        os._exit(0)
    os.waitpid(pid, 0)
