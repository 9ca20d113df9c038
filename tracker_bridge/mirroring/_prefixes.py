"""Telling apart several trackers' runs, or writers, that are copied into one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Prefixes:
    """The first one that is seen has its names unchanged, each further one has them under a name of its own."""

    def __init__(self) -> None:
        self._of: dict[Any, str] = {}

    def of(self, key: Any, name: Callable[[], str]) -> str:
        """What to put in front of each name (empty, or ending with a slash). `name()` is asked once."""
        if key not in self._of:
            own = name().strip("/") if self._of else ""
            taken = set(self._of.values())
            free, count = f"{own}/", 2
            while own and free in taken:
                free, count = f"{own}-{count}/", count + 1
            self._of[key] = free if own else ("" if not self._of else f"{len(self._of) + 1}/")
        return self._of[key]
