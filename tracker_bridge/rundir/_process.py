"""Which process owns a run, told apart from a later process with the same number."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """A process: `started` is its start time as the kernel counts it (clock ticks since boot), 0 where unknown."""

    pid: int
    host: str
    started: int = 0

    def is_alive(self) -> bool:
        """False if the process is surely gone. True on another host, where nobody can tell."""
        if self.host != socket.gethostname():
            return True
        started = _start_time(self.pid)
        if started is None:
            return not _proc_available() and _signalable(self.pid)
        return self.started in (0, started)


def this_process() -> Owner:
    """The calling process."""
    pid = os.getpid()
    return Owner(pid=pid, host=socket.gethostname(), started=_start_time(pid) or 0)


def _start_time(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name in parentheses may hold spaces and parentheses; the fields after it are fixed (proc(5)).
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _proc_available() -> bool:
    return Path("/proc/self/stat").exists()


def _signalable(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
