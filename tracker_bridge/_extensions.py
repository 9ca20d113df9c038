"""Whether the modules in C are used. They are built where there is a compiler, and do what the Python beside them does.

Imports nothing of this package.
"""

from __future__ import annotations

import os
import sys

NO_EXTENSIONS = "TRACKER_BRIDGE_NO_EXTENSIONS"
WANTED = sys.byteorder == "little" and os.environ.get(NO_EXTENSIONS, "0") in ("", "0")
"""False: everything runs in Python; by choice, to find out whether a fault is one of the modules in C.

They store words in the order of the machine, and the journal's format is little-endian."""
NATIVE = ("records", "journal", "run", "collector")
"""The packages that have one, `_native`."""
