"""Settings that must be there before any test imports anything. Holds no fixture."""

from __future__ import annotations

import os
import signal
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores already; threads of torch and BLAS beside them, and those of the processes that tests
    # start, only wait for one another.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

for source in (Path(__file__).parent.parent / "tracker_bridge").rglob("_native.pyx"):
    for built in source.parent.glob("_native.*.so"):
        if built.stat().st_mtime < source.stat().st_mtime:
            raise RuntimeError(f"{built} is older than its source; install again: pip install -c constraints.txt -e .")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and the scripts that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
