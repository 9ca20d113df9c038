"""Values out of foreign JSON and the like, made such that a record can hold them."""

from __future__ import annotations

import json
import math
from typing import Any

_INT64 = 1 << 63


class NotJsonError(ValueError):
    """The text is not JSON, or nested too deeply to be sane."""


def parse_json(text: str | bytes) -> Any:
    """JSON as trackers write it: NaN and the infinities are allowed. Raises `NotJsonError`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(f"not JSON: {error}") from None


def plain(value: Any) -> Any:
    """The value with text that UTF-8 cannot hold replaced, and integers beyond 64 bits as text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, dict):
        return {clean(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return clean(str(value))


def clean(text: str) -> str:
    """The text without lone surrogates, which JSON can spell and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def as_step(value: Any) -> int | float | None:
    """A number as a step: an int64 where it is whole, else a finite float; None if it is no step."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if not value.is_integer():
            return value
    whole = int(value)
    return whole if -_INT64 <= whole < _INT64 else None


def seconds_to_ns(value: Any) -> int | None:
    """Seconds since the epoch as nanoseconds, if they are a time that int64 can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 9.2e9:
        return None
    return round(value * 1_000_000_000)
