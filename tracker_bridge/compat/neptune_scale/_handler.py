"""`NeptuneLoggingHandler`: records of Python's logging as a series of texts."""

from __future__ import annotations

import logging
import threading

from tracker_bridge.compat.neptune_scale._run import Run

__all__ = ["NeptuneLoggingHandler"]


class NeptuneLoggingHandler(logging.Handler):
    """Sends formatted log records to `run` as the string series `attribute_path` (default `runtime/logs`).

    Raises `TypeError` if `run` is no `Run`.
    """

    def __init__(self, *, run: Run, level: int = logging.NOTSET, attribute_path: str | None = None) -> None:
        if not isinstance(run, Run):
            raise TypeError(f"run must be a Run, not {type(run).__name__}")
        super().__init__(level)
        self._run = run
        self._path = attribute_path or "runtime/logs"
        self._line = 0
        self._inside = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record, a line of it at a time."""
        if getattr(self._inside, "yes", False):
            return
        self._inside.yes = True
        try:
            for line in self.format(record).splitlines():
                self._run.log_string_series({self._path: line}, step=self._line)
                self._line += 1
        finally:
            self._inside.yes = False
