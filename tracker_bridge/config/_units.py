"""Sizes, durations and name patterns as people write them. Each reader raises `ValueError` with what it expects."""

from __future__ import annotations

import math
import re
from typing import Any

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_BYTES = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: Any) -> int:
    """Bytes: a whole number, or text such as `512MiB`, `2 GiB`, `1.5GB`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1 and value == int(value):
        return int(value)
    amount, unit = _measure(value)
    if unit in _BYTES and amount * _BYTES[unit] >= 1:
        return int(amount * _BYTES[unit])
    raise ValueError("a size above 0 such as 512MiB, 2GiB or a number of bytes")


def parse_duration(value: Any) -> float:
    """Seconds: a number, or text such as `500ms`, `90s`, `5min`, `1h`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    amount, unit = _measure(value)
    if unit in _SECONDS and amount >= 0:
        return amount * _SECONDS[unit]
    raise ValueError("a number of seconds, or a duration such as 90s, 5min or 1h")


def parse_order(value: Any) -> float:
    """The p of a norm: a number above 0, or `inf`."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError("the p of a norm: a number above 0, or inf")


def check_pattern(pattern: str) -> None:
    """A glob, or `re:` and a regular expression."""
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            where = "" if error.pos is None else f" at character {error.pos + 1} after re:"
            raise ValueError(f"a valid regular expression after re: ({error.msg}{where})") from None
    elif not pattern:
        raise ValueError("a glob such as *.bias, or re: and a regular expression")
    elif _opened(pattern):
        raise ValueError("a glob whose [ is closed by ] (write [[] for the character itself)")


def _measure(value: Any) -> tuple[float, str]:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return (float(match[1]), match[2].lower()) if match else (-1.0, "?")


def _opened(pattern: str) -> bool:
    # fnmatch takes an unclosed [ as itself, which is never what was meant in a parameter name.
    at = pattern.find("[")
    while at >= 0:
        start = at + (3 if pattern[at + 1 : at + 3] == "!]" else 2)
        closed = pattern.find("]", start)
        if closed < 0:
            return True
        at = pattern.find("[", closed)
    return False
