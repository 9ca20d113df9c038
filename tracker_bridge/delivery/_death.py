"""How the training process died, as far as the system tells a process that is not its parent. Linux only; else None.

Nothing is installed in the training process for this: a signal handler there would keep it from dying at once.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path

_GET_INFO = 0xC040FF0B
_EXIT = 1 << 3
# PIDFD_GET_INFO and PIDFD_INFO_EXIT of linux/pidfd.h; Linux 6.15 and newer keep the exit status there, also after the
# process was reaped by its own parent.
_ZOMBIE_SECONDS = 0.1
# Older kernels show the exit status only while nobody has reaped the process.


def own_pidfd() -> int:
    """A descriptor of the calling process, to be handed to the one that watches it; -1 where there is no such thing."""
    try:
        return os.pidfd_open(os.getpid()) if sys.platform == "linux" else -1
    except (OSError, AttributeError):
        return -1


class Death:
    """Watches one process; `fd` is its `own_pidfd`, -1 if there is none."""

    def __init__(self, pid: int, fd: int) -> None:
        self._pid = pid
        self._fd = fd
        self._seen: int | None = None

    def look(self) -> None:
        """Call this as soon as the process seems to be going: for a moment its status may still be there."""
        until = time.monotonic() + _ZOMBIE_SECONDS
        while self._seen is None and time.monotonic() < until:
            self._seen = _zombie_status(self._pid)
            if not Path(f"/proc/{self._pid}").exists():
                return

    def signal(self) -> int | None:
        """The signal that ended the process; 0 if it exited by itself, None if nobody can tell."""
        status = self._kept_status()
        if status is None:
            status = self._seen
        return None if status is None else status & 0x7F

    def _kept_status(self) -> int | None:
        if self._fd < 0:
            return None
        import fcntl

        info = bytearray(64)
        struct.pack_into("<Q", info, 0, _EXIT)
        try:
            fcntl.ioctl(self._fd, _GET_INFO, info)
        except OSError:
            return None
        (mask,) = struct.unpack_from("<Q", info, 0)
        return int(struct.unpack_from("<i", info, 60)[0]) if mask & _EXIT else None


def _zombie_status(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[-1]) if fields[0] == "Z" else None
