"""Waiting for something real: poll with a deadline, never a bare sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(probe: Callable[[], T], seconds: float = 20.0, what: str = "") -> T:
    """The first true value of `probe()`; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"did not happen within {seconds} s: {what or probe}")
        time.sleep(0.01)
