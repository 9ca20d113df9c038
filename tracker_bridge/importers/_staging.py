"""Where runs are made before they stand among the others: a hidden folder for each importing process.

It has a lock beside it that its process loses when it dies, whatever kills it; the next import removes what the dead
have left. One lock for all runs of a process: a file that comes and goes with each small run costs more than the run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType

from tracker_bridge.rundir import FileLock, LockBusyError

FOLDER = ".importing"
_LOCK = ".lock"


class Staging:
    """Made by `open`, gone when the context ends. Used by one thread at a time."""

    def __init__(self, queue: Path) -> None:
        self.queue = queue
        self._parent = queue / FOLDER
        self._lock: FileLock | None = None
        self._folder = self._parent

    def open(self) -> None:
        """Make the folder, if there is none yet. Raises `OSError` if nothing can be imported to here."""
        if self._lock is None:
            self._make()

    def place(self, name: str) -> Path:
        """A new, empty folder for one run, after `open`. Raises `OSError`."""
        place = self._folder / name
        try:
            place.mkdir()
        except FileExistsError:  # an import of the same run that was interrupted in this process
            shutil.rmtree(place)
            place.mkdir()
        return place

    def __enter__(self) -> Staging:
        if self._parent.is_dir():
            self._sweep()
            self._leave()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._lock is None:
            return
        _remove(self._folder, self._lock)
        self._lock = None
        self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # another import uses it
            self._parent.rmdir()

    def _make(self) -> None:
        while True:
            folder = self._parent / f"{os.getpid()}-{secrets.token_hex(4)}"
            lock = FileLock(_lock_of(folder))
            try:
                if self._take(folder, lock):
                    self._folder, self._lock = folder, lock
                    return
            except BaseException:  # Ctrl-C too
                _remove(folder, lock)
                self._leave()
                raise
            lock.release()
            shutil.rmtree(folder, ignore_errors=True)

    def _take(self, folder: Path, lock: FileLock) -> bool:
        """Make a folder and hold its lock; False if another import has come in between."""
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
            folder.mkdir()
        except (LockBusyError, FileNotFoundError):
            pass  # another import took it for a dead one's before it was locked, or removed the parent
        except FileExistsError:
            if os.path.lexists(self._parent) and not self._parent.is_dir():
                raise
        return lock.is_current() and folder.is_dir()

    def _sweep(self) -> None:
        """Remove what imports left that were killed."""
        for path in self._parent.glob(f"*{_LOCK}"):
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except (LockBusyError, OSError):
                continue
            if lock.is_current():
                _remove(path.with_suffix(""), lock)
            else:
                lock.release()


def _remove(folder: Path, held: FileLock) -> None:
    """Remove a place with its lock, which is held."""
    shutil.rmtree(folder, ignore_errors=True)
    # Before it is released: whoever has opened it then holds a lock of a file that is gone, and sees that.
    with contextlib.suppress(OSError):
        _lock_of(folder).unlink()
    held.release()
    with contextlib.suppress(OSError):  # Windows removes no open file
        _lock_of(folder).unlink()


def settle(folder: Path) -> None:
    """Bring what is in the files below `folder` to the disk itself. Raises `OSError`."""
    for root, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(root, name), os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
            try:
                if os.fstat(fd).st_size:
                    os.fsync(fd)
            finally:
                os.close(fd)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)
