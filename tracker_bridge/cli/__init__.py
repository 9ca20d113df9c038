"""The command line `tracker-bridge`: one module for each command, named in `_COMMANDS`.

Exit status of every command: 0 ok, 1 something is undelivered or was found, 2 wrong usage. Results go to standard
output (`--json`: one JSON document and nothing else), progress and errors to standard error. Nothing here imports
torch or an SDK, and nothing asks a question.
"""

from __future__ import annotations

from tracker_bridge.cli._main import main

__all__ = ["main"]
