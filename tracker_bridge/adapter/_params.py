"""Nested params to the flat, typed or textual form that a tracker stores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def flatten_params(params: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Nested mappings flattened to one level; lists and scalars stay. Empty mappings stay as `{}`.

    Two keys that meet (`{"a/b": 1, "a": {"b": 2}}`) stay two: the later one gets a number, `a/b (2)`.
    """
    flat: dict[str, Any] = {}
    for path, value in _walk(params, "", separator):
        free, number = path, 2
        while free in flat:
            free, number = f"{path} ({number})", number + 1
        flat[free] = value
    return flat


def param_text(value: Any) -> str:
    """The text form of one plain value: JSON for lists and mappings, `str` otherwise (None -> "None")."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple, Mapping)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _walk(params: Mapping[str, Any], prefix: str, separator: str) -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _walk(value, path + separator, separator)
        else:
            yield path, value
