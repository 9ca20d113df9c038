"""Atomic JSON files and advisory locks."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

try:
    import fcntl
except ImportError:  # Windows: msvcrt locks bytes instead of files
    fcntl = None  # type: ignore[assignment]
    import msvcrt

T = TypeVar("T")


class LockBusyError(Exception):
    """Another process holds the lock."""


class FileLock:
    """An advisory lock that its process loses when it dies, whatever kills it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self, timeout: float | None = None) -> None:
        """Take the lock, waiting at most `timeout` seconds (None: for ever). Raises `LockBusyError`, `OSError`."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.001
        while not _try_lock(fd):
            if deadline is not None and time.monotonic() >= deadline:
                os.close(fd)
                raise LockBusyError(f"{self._path} is held by another process")
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; harmless if it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def forget_after_fork(self) -> None:
        """In a forked child: close the inherited descriptor without touching the parent's lock."""
        # flock belongs to the open file description, shared with the parent; closing one descriptor keeps it.
        self.release()

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def _try_lock(fd: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except (BlockingIOError, PermissionError):
        return False
    return True


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by the indented JSON of `value` in one step; a crash leaves the old or the new file whole."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data + b"\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: Path, kind: type[T]) -> T:
    """The `kind` in `path`. Raises `OSError` and `msgspec.DecodeError`."""
    return msgspec.json.decode(path.read_bytes(), type=kind)
