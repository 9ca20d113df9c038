"""The delivery process' own stdout and stderr: one bounded file, freed of secrets line by line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

_MOST_BYTES = 8 * 1024 * 1024


def redirect_output(path: Path, scrub: Callable[[str], str]) -> Callable[[], None]:
    """Send file descriptors 1 and 2 through `scrub` to `path`; returns what waits for the last line to be written.

    SDKs and their helper processes write to the descriptors, so replacing `sys.stdout` would not reach them.
    """
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    done = threading.Event()

    def pump() -> None:
        with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as lines, _open_log(path) as log:
            written = log.tell()
            for line in lines:
                if written < _MOST_BYTES:
                    written += log.write(scrub(line))
                    log.flush()
        done.set()

    threading.Thread(target=pump, name="tracker_bridge-log", daemon=True).start()

    def finish() -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.close(null)
        # A helper process of an SDK that outlives us keeps the pipe open; nobody waits for it.
        done.wait(0.2)

    return finish


def _open_log(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError:
        return Path(os.devnull).open("w", encoding="utf-8")
