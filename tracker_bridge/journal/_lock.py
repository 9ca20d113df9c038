"""One writer for each journal: an advisory lock file in its folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tracker_bridge.journal._errors import WriterBusyError

try:
    import fcntl
except ImportError:  # Windows locks bytes of a file instead
    fcntl = None  # type: ignore[assignment]
    import msvcrt

_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def lock_journal(folder: Path) -> int:
    """Take the lock; the descriptor to close to give it back. Raises `WriterBusyError`, `OSError`."""
    fd = os.open(folder / ".writer", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError as error:
        # Some network file systems know no locks; there the caller's own lock is all there is.
        if error.errno in _BUSY:
            os.close(fd)
            raise WriterBusyError(
                f"another writer is appending to {folder}; close it first, or give this run its own directory"
            ) from None
    return fd
