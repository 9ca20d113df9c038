"""Atomic JSON files and advisory locks."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
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

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_SPARE_BYTES = 16 * 1024


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

    def is_current(self) -> bool:
        """Whether the lock is held and its path still names the file that is locked (nobody has removed it)."""
        try:
            return self._fd is not None and os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

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
    """Replace `path` by the indented JSON of `value` in one step; a crash leaves the old or the new file whole.

    On a full disk the file's spare (`keep_spare`) is filled and becomes the new file, if there is one.
    """
    data = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    try:
        replace_file(path, data)
    except OSError as error:
        if error.errno not in _DISK_FULL or not _replace_by_spare(path, data):
            raise
        # What the old file took is free now, unless somebody else has it already.
        with contextlib.suppress(OSError):
            keep_spare(path)


def spare_for(path: Path) -> Path:
    """Where the spare of `path` lies."""
    return path.with_name(f".{path.name}.spare")


def keep_spare(path: Path) -> None:
    """Reserve room to replace `path` once when the disk is full. Raises `OSError` if there is none.

    The blocks are taken before they are needed: room that is only given back then would be gone to the next writer.
    """
    size = path.stat().st_size
    try:
        _reserve(spare_for(path), max(_SPARE_BYTES, 4 * size))
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _reserve(spare_for(path), 2 * size)


def _reserve(spare: Path, size: int) -> None:
    fd = os.open(spare, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.write(fd, bytes(size))
    except BaseException:
        spare.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step; a crash leaves the old or the new file whole. Raises `OSError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        # Not `tempfile`, whose files nobody else may read: a run belongs to whom the user's umask says.
        with temporary.open("xb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _replace_by_spare(path: Path, data: bytes) -> bool:
    spare = spare_for(path)
    try:
        with spare.open("r+b") as file:
            if os.fstat(file.fileno()).st_size < len(data):
                return False
            file.write(data)
            file.truncate()
        os.replace(spare, path)
    except OSError:  # none, or a file system that writes elsewhere than where it has room
        return False
    return True


def read_json(path: Path, kind: type[T]) -> T:
    """The `kind` in `path`. Raises `OSError` and `msgspec.DecodeError`."""
    return msgspec.json.decode(path.read_bytes(), type=kind)
