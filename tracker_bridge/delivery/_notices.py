"""Lines for the user, once per cause: kept in the run directory, shown by the training process and by `status`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

_MOST_BYTES = 256 * 1024
_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


class Notices:
    """Appends to the notice file. `scrub` removes secrets from a text."""

    def __init__(self, path: Path, scrub: Callable[[str], str]) -> None:
        self._path = path
        self._scrub = scrub
        self._seen: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def say(self, source: str, text: str) -> None:
        """Add one line, unless the same cause (the text without its numbers) was said before. Never raises."""
        line = " ".join(self._scrub(text).split())[:500]
        cause = (source, _VARIABLE.sub("#", line)[:120])
        with self._lock:
            if cause in self._seen:
                return
            self._seen.add(cause)
            try:
                if self._path.exists() and self._path.stat().st_size > _MOST_BYTES:
                    return
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(f"{source}: {line}\n")
            except OSError:
                # The disk is the trouble that other counters already tell; a notice must not make it worse.
                return

    def forget(self, source: str) -> None:
        """Let the causes of `source` be said again (it has recovered)."""
        with self._lock:
            self._seen = {cause for cause in self._seen if cause[0] != source}
