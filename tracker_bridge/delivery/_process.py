"""The training process' side of process mode: start the delivery process, tell it things, wait for it, end it.

Nothing here blocks the training thread except `wait`, which its caller bounds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from tracker_bridge.delivery._death import own_pidfd
from tracker_bridge.delivery._plan import Plan
from tracker_bridge.rundir import this_process

_KILL_GRACE = 0.5
_NOT_INHERITED = ("WANDB_SERVICE", "PYTHONSTARTUP")
# WANDB_SERVICE would tie our own W&B run to the service process of a run that the script owns.


class DeliveryProcess:
    """A running `python -m tracker_bridge.delivery RUN_DIR` in a session of its own."""

    def __init__(self, root: Path, plan: Plan, *, cwd: Path | None = None, follow: bool = True) -> None:
        """Start it; with `follow` it ends when the calling process has ended. Raises `OSError` if none can be made."""
        self._pid = os.getpid()
        command = [sys.executable, "-m", "tracker_bridge.delivery", str(root)]
        if follow:
            # Not what `run.json` says when it has started: by then the next attempt may have written that.
            command.append(f"--owner={msgspec.json.encode(this_process()).decode()}")
        else:
            command.append("--drain")
        pidfd = own_pidfd()
        if follow and pidfd >= 0:
            command.append(f"--pidfd={pidfd}")
        try:
            self._process = self._start(command, cwd, pidfd)
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        self._send(msgspec.json.encode(plan) + b"\n")
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    @staticmethod
    def _start(command: list[str], cwd: Path | None, pidfd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=cwd if cwd is not None and cwd.is_dir() else None,
            env=_environment(),
            pass_fds=(pidfd,) if pidfd >= 0 else (),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id, which is also its session id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def nudge(self) -> None:
        """Ask for delivery now instead of at the next look at the journal."""
        self._send(b"nudge\n")

    def end(self, seconds: float) -> None:
        """Say that nothing more will be appended and that `seconds` are left for delivery."""
        self._send(f"end {seconds:.3f}\n".encode())

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most `seconds`; True if it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._close_pipe()
        return True

    def kill(self) -> None:
        """End it and every process that its SDKs left in its session."""
        kill_session(self._process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_GRACE)
        self._close_pipe()

    def forget_after_fork(self) -> None:
        """In a forked child: drop the inherited pipe, so that the parent's end is seen, and never wait or kill."""
        self._close_pipe()
        self._process.returncode = 0

    def _send(self, data: bytes) -> None:
        # A delivery process that is gone or does not read is found out elsewhere; telling it must not raise or block.
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()


def kill_session(session: int) -> None:
    """SIGKILL to the session leader, its descendants and whatever else is in the session (elsewhere: its group).

    An SDK may give its helper a session of its own (wandb-core has one), so descent counts as well. The leader is
    last: it may be the caller.
    """
    members = _session_members(session)
    for pid in (*(member for member in members if member != session), session):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if not members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)


def _session_members(session: int) -> set[int]:
    parents: dict[int, int] = {}
    members = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            if int(fields[3]) == session or pid == session:
                members.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in members} - members
        members |= children
        grown = bool(children)
    return members


def _environment() -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    # The script's own path entries, so that what it could import (this package, third-party adapters) is found, and
    # no implicit working directory, so that a folder named like an SDK in it cannot shadow the SDK.
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    environment["PYTHONSAFEPATH"] = "1"
    return environment
