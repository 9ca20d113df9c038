"""Names, params and tags in MLflow's form and within its limits. Pure.

Limits: https://github.com/mlflow/mlflow/blob/master/mlflow/utils/validation.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tracker_bridge.adapter import NameMap, NameRule, flatten_params, param_text

LONGEST_NAME = 250
LONGEST_PARAM, LONGEST_TAG = 6_000, 5_000
MOST_METRICS, MOST_PARAMS, MOST_TAGS = 1_000, 100, 100

NAMES = NameRule(allowed=r"[\w./\- :]", max_length=LONGEST_NAME, path=True)
_OWN_TAGS = NameRule(
    allowed=NAMES.allowed,
    max_length=LONGEST_NAME,
    path=True,
    reserved=(r"tracker_bridge\..*", r"param_changed\..*", r"alert\..*"),
)
SEPARATOR, _BETWEEN = ".", "\0"

T = TypeVar("T")


def param_texts(params: Mapping[str, Any]) -> dict[str, str]:
    """MLflow's params: flat, text, with keys that it takes. Keys that would meet after flattening stay apart."""
    names = NameMap(NAMES)
    texts: dict[str, str] = {}
    for path, value in flatten_params(params, _BETWEEN).items():
        key = names(path.replace(_BETWEEN, SEPARATOR))
        # `{"a.b": 1, "a": {"b": 2}}`: the path with its own separator is refused, and so gets a mark.
        texts[names(path) if key in texts else key] = cut(param_text(value), LONGEST_PARAM)
    return texts


def tag_pairs(tags: Mapping[str, str | None]) -> dict[str, str]:
    """A plain tag becomes a key with the value `true` (or the tag itself, where the key had to be changed)."""
    names = NameMap(_OWN_TAGS)
    pairs: dict[str, str] = {}
    for tag, value in tags.items():
        key = names(tag)
        text = value if value is not None else "true" if key == tag else tag
        pairs[key] = cut(text, LONGEST_TAG)
    return pairs


def own_key(prefix: str, name: str) -> str:
    """A tag key of the adapter's own for something called `name`."""
    return NameMap(NAMES)(f"{prefix}.{name}")


def cut(text: str, limit: int) -> str:
    """`text`, or its beginning with a note of what is missing and a mark by which two long texts can be told apart."""
    clean = text.encode("utf-8", "replace").decode()
    if len(clean) <= limit:
        return clean
    mark = hashlib.blake2b(clean.encode(), digest_size=6).hexdigest()
    note = f"... (cut: {len(clean)} characters, {mark})"
    return clean[: limit - len(note)] + note


def chunks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`values` in parts of at most `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
