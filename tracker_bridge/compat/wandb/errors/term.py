"""`wandb.errors.term`: W&B's own lines on standard error."""

from __future__ import annotations

import sys

__all__ = ["termerror", "termlog", "termwarn"]

_once: set[str] = set()


def termlog(string: str = "", newline: bool = True, repeat: bool = True) -> None:
    """A line of information."""
    _print(string, "", newline, repeat)


def termwarn(string: str, newline: bool = True, repeat: bool = True) -> None:
    """A warning."""
    _print(string, "WARNING ", newline, repeat)


def termerror(string: str, newline: bool = True, repeat: bool = True) -> None:
    """An error."""
    _print(string, "ERROR ", newline, repeat)


def _print(text: str, level: str, newline: bool, repeat: bool) -> None:
    if not repeat:
        if text in _once:
            return
        _once.add(text)
    sys.stderr.write("\n".join(f"wandb: {level}{line}" for line in text.split("\n")) + ("\n" if newline else ""))
