"""What params mean when one record of them follows another. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def merge_params(known: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `new` over `known`, which is changed: mappings key by key, everything else replaced.

    Returns what was new or changed, in the same nested shape; empty if nothing was. `known` shares nothing with `new`
    afterwards. NaN equals itself here, and `True` is not 1.
    """
    news: dict[str, Any] = {}
    for key, value in new.items():
        old = known.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            inner = merge_params(old, value)
            if inner:
                news[key] = inner
        elif key not in known or not _same(old, value):
            news[key] = value
            known[key] = copy.deepcopy(value)
    return news


def _same(old: Any, new: Any) -> bool:
    # NaN differs from itself, and True equals 1: the text form tells both apart.
    return type(old) is type(new) and (old == new or repr(old) == repr(new))
