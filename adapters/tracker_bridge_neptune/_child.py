"""Runs inside the SDK's upload process, before the SDK: ties its life to that of the process that started it.

neptune-scale 0.30 looks up its parent only after it has started; where the parent was killed in that first second the
upload process stays for ever. Linux can end a child with its parent; elsewhere the next opening ends it (`kill_stale`).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def run_sync_process(**arguments: Any) -> None:
    """The SDK's own entry point of the process, with its arguments."""
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it died before the line above
            os._exit(0)
    from neptune_scale.sync.sync_process import run_sync_process as run

    run(**arguments)
