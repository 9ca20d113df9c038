"""The delivery process: `python -m tracker_bridge.delivery RUN_DIR [--drain] [--owner=PROCESS] [--pidfd=N]`.

It reads the plan (a JSON line, with the secrets that no file may hold) and then commands from its standard input, and
delivers RUN_DIR until the run has ended. `--drain`: nobody appends; deliver what is there and stop, also when the
starter is gone: its end of the standard input closes with it, and the rest stays in the journal.
`--owner`: the training process whose records it delivers, as `run.json` has it. `--pidfd`: an inherited descriptor of
that process, which tells how it ended.
Started by hand on a terminal it takes plan and owner from the run's own `run.json`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn

import msgspec

from tracker_bridge.delivery._death import Death
from tracker_bridge.delivery._host import Host, end_as, end_for, hand_over
from tracker_bridge.delivery._lifecycle import Lifecycle
from tracker_bridge.delivery._log import redirect_output
from tracker_bridge.delivery._plan import Plan
from tracker_bridge.delivery._process import kill_session
from tracker_bridge.delivery._sync import stored_plan
from tracker_bridge.rundir import LockBusyError, NotARunError, Owner, RunPaths, load_manifest

TERMINATION_GRACE = 10.0
"""Seconds for draining after SIGTERM, within what cluster managers leave before SIGKILL (Kubernetes and SLURM: 30)."""

_OWNER_GRACE = 1.0

_STARTER_GRACE = 2.0
# After the starter of a `--drain` is gone: couriers get that long to save how far they are.


def main(arguments: list[str]) -> int:
    """Exit status: 0 all delivered, 1 something is left, 2 no run or no plan."""
    paths = RunPaths(Path(arguments[0]))
    drain = "--drain" in arguments[1:]
    manifest = load_manifest(paths)
    plan = stored_plan(paths) if sys.stdin.isatty() else _read_plan(sys.stdin.buffer)
    finish_log = redirect_output(paths.log, plan.scrubber)
    with contextlib.suppress(OSError):
        # Training comes first where both want the same core.
        os.nice(5)
    lifecycle = Lifecycle()
    given = dict(word.split("=", 1) for word in arguments[1:] if "=" in word)
    owner = None
    if not drain:
        owner = msgspec.json.decode(given["--owner"], type=Owner) if "--owner" in given else manifest.owner
    pidfd = int(given.get("--pidfd", -1))
    death = Death(owner.pid, pidfd) if owner is not None else None
    if drain:
        _end_for_drain(paths, lifecycle)
        lifecycle.limit(plan.close_timeout)

    def terminated(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=_drain_after_signal, name="tracker_bridge-sigterm", daemon=True).start()

    def _drain_after_signal() -> None:
        # A cluster manager signals both processes: see whether the training process goes too.
        until = time.monotonic() + _OWNER_GRACE
        while owner is not None and owner.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
        if owner is not None and owner.is_alive():
            lifecycle.end(None)
        else:
            end_for(owner, paths, lifecycle, "killed")
        lifecycle.limit(min(TERMINATION_GRACE, plan.close_timeout))

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def obey() -> None:
        _obey(sys.stdin.buffer, lifecycle, paths)
        if death is not None:
            death.look()
        if drain:
            lifecycle.limit(0)
            # Also where it waits for another delivery of this run, or an adapter hangs.
            time.sleep(_STARTER_GRACE)
            _end_here(1)

    threading.Thread(target=obey, name="tracker_bridge-in", daemon=True).start()
    try:
        complete = Host(paths, plan, lifecycle, death).serve(watch=owner)
    except LockBusyError as error:
        print(error, file=sys.stderr)
        complete = False
    finish_log()
    _end_here(0 if complete else 1)


def _end_here(status: int) -> NoReturn:
    if status and os.getsid(0) == os.getpid():
        # An adapter hangs: it and the helper processes of its SDK end here, with this process among them.
        kill_session(os.getpid())
    # Exit handlers of SDKs may wait for servers; everything of ours is on disk.
    os._exit(status)


def _read_plan(stream: BinaryIO) -> Plan:
    return msgspec.json.decode(stream.readline(), type=Plan)


def _obey(stream: BinaryIO, lifecycle: Lifecycle, paths: RunPaths) -> None:
    """Do what the lines say until the other end of `stream` is closed."""
    for line in stream:
        word, _, argument = line.decode("ascii", "replace").strip().partition(" ")
        if word == "nudge":
            lifecycle.nudge()
        elif word == "end":
            lifecycle.end(_ended_as(paths))
            lifecycle.limit(float(argument))


def _end_for_drain(paths: RunPaths, lifecycle: Lifecycle) -> None:
    manifest = load_manifest(paths)
    if manifest.owner is None or not manifest.owner.is_alive():
        manifest = end_as("crashed", manifest.owner, paths)
    if manifest.status == "running":
        hand_over(paths, lifecycle)
    else:
        lifecycle.end(manifest.status)


def _ended_as(paths: RunPaths) -> str | None:
    """How the run ended as `run.json` has it, for a journal that had no room for it; None while it goes on."""
    try:
        status = load_manifest(paths).status
    except NotARunError:
        return None
    return None if status == "running" else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
