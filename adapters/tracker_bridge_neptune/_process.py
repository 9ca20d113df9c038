"""The SDK's upload process: started without side effects, never left behind, never waited for without a limit.

Everything here that is not in the SDK's documentation is looked up with `getattr`, and its absence only costs the
protection it gives.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tracker_bridge_neptune import _child
from tracker_bridge_neptune import _database as database

FATAL = frozenset(
    {
        "NeptuneSynchronizationStopped",
        "NeptuneInvalidCredentialsError",
        "NeptuneUnauthorizedError",
        "NeptuneUnableToAuthenticateError",
        "NeptuneProjectNotFound",
        "NeptuneProjectInvalidName",
        "NeptuneRunInvalidCreationParameters",
        "NeptuneRunForkParentNotFound",
        "NeptuneUnexpectedError",
    }
)
"""Errors after which the SDK sends nothing more."""

_starting = threading.Lock()


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Around the SDK's import and start, which read the level: errors only unless `NEPTUNE_LOGGER_LEVEL` is set."""
    level = os.environ.get("NEPTUNE_LOGGER_LEVEL")
    os.environ.setdefault("NEPTUNE_LOGGER_LEVEL", "error")
    try:
        yield
    finally:
        if level is None:
            os.environ.pop("NEPTUNE_LOGGER_LEVEL", None)


@contextmanager
def quiet_start() -> Iterator[None]:
    """Around whatever spawns the SDK's process.

    `spawn` runs the main module's top level again in the child; a script without a main guard would train twice.
    The upload process needs nothing of the main module, so it is shown an empty one. It inherits the log level, and
    begins in `_child`.
    """
    with _starting, quiet_logs(), ExitStack() as undo:
        undo.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        sys.modules["__main__"] = types.ModuleType("__main__")
        for name in ("neptune_scale.api.run", "neptune_scale.cli.sync"):
            starter = sys.modules.get(name)
            if starter is not None and hasattr(starter, "run_sync_process"):
                undo.callback(setattr, starter, "run_sync_process", starter.run_sync_process)
                starter.run_sync_process = _child.run_sync_process  # type: ignore[attr-defined]
        yield


def bound_exit(run: Any) -> Callable[[], None]:
    """Replace the SDK's exit handler, which waits for the server without limit, by one that kills the process."""
    handler = getattr(run, "_exit_func", None)
    if handler is not None:
        atexit.unregister(handler)
    bounded = partial(kill, run)
    atexit.register(bounded)
    return bounded


def close(run: Any, at_exit: Callable[[], None] | None) -> None:
    """End the SDK's run within about a second; what is not sent stays in its database."""
    kill(run)
    run.close(timeout=1.0)
    if at_exit is not None:
        atexit.unregister(at_exit)


def kill(run: Any) -> None:
    """Kill and reap the upload process."""
    child = getattr(run, "_sync_process", None)
    if child is not None and child.pid is not None and child.is_alive():
        child.kill()
        child.join(5.0)


def alive(run: Any) -> bool:
    """Whether the upload process lives (True where that cannot be told)."""
    child = getattr(run, "_sync_process", None)
    return child is None or bool(child.is_alive())


def identity(run: Any) -> tuple[int, float] | None:
    """Pid and creation time of the upload process."""
    child = getattr(run, "_sync_process", None)
    with suppress(psutil.Error):
        if child is not None and child.pid is not None:
            return child.pid, psutil.Process(child.pid).create_time()
    return None


def kill_stale(known: tuple[int, float] | None) -> None:
    """Kill an upload process whose parent was killed before it could notice (neptune-scale 0.30 leaves it for ever)."""
    if known is None:
        return
    with suppress(psutil.Error):
        found = psutil.Process(known[0])
        if abs(found.create_time() - known[1]) < 1.0:
            found.kill()
            found.wait(5.0)


def database_of(run: Any, directory: Path) -> Path:
    """The file the run writes to."""
    known = getattr(run, "_operations_repository_path", None)
    if known is not None:
        return Path(known)
    files = list(directory.glob("*/run_operations.sqlite3"))
    return max(files, key=lambda file: file.stat().st_mtime_ns)


def send(path: Path, token: str, stall: float) -> int:
    """Have a server take an earlier database. Returns how many operations are left after `stall` s without progress."""
    from neptune_scale.cli.sync import SyncRunner

    runner = SyncRunner(api_token=token, run_log_file=path)
    with quiet_start():
        runner.start()
    try:
        wait_until_sent(path, runner, stall)
    finally:
        kill(runner)
        runner.stop(timeout=1.0)
    return database.waiting(path) if path.exists() else 0


def wait_until_sent(path: Path, run: Any, stall: float) -> None:
    """Wait until nothing waits, the upload process is gone, or a server has taken nothing for `stall` s."""
    last, since = (-1, -1), time.monotonic()
    while alive(run) and time.monotonic() - since < stall:
        now = database.waiting(path), database.submitted(path)
        if now[0] == 0:
            return
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)


def remove(path: Path) -> None:
    """Delete a database whose content is on a server, and its folder if nothing else is in it."""
    with suppress(OSError):
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.parent.rmdir()


def plain(error: BaseException) -> str:
    """The SDK's error text without its terminal colours, on one line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return " ".join(text.split())[:300]
