"""Whether the modules in C are used. They are built where there is a compiler, and do what the Python beside them does.

Imports nothing of this package.
"""

from __future__ import annotations

import os

NO_EXTENSIONS = "TRACKER_BRIDGE_NO_EXTENSIONS"
WANTED = os.environ.get(NO_EXTENSIONS, "0") in ("", "0")
"""False: everything runs in Python, to find out whether a fault is one of the modules in C."""
NATIVE = ("records", "journal", "run", "collector")
"""The packages that have one, `_native`."""
