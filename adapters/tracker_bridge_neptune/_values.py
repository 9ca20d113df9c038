"""Bridge values in Neptune's own types. Pure; imports no SDK."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from tracker_bridge.adapter import NameMap, NameRule, flatten_params, param_text

Step = Union[int, float]
MAX_STEP = 10**12
"""Steps from 0 to below this (the SDK raises on others), in units of 1e-6."""
MAX_TEXT = 256_000
"""Characters of a string. The server refuses over 1 MiB of UTF-8, and neptune-scale 0.30 never returns from 2 MiB."""
MAX_BINS = 512
NAMES = NameRule(max_length=1000, unit="bytes", reserved=(r"sys/.*", r"tracker_bridge/.*"))
"""Attribute paths have at most 1,024 bytes of UTF-8, some of which `tracker_bridge/names/<name>` needs; `sys/` is the
server's own."""
INT64 = 2**63


def step_problem(step: Step) -> str | None:
    """Why Neptune cannot take this step; None if it can."""
    if isinstance(step, float) and not math.isfinite(step):
        return "Neptune takes no step that is not finite"
    return None if 0 <= step < MAX_STEP else "Neptune takes steps from 0 to below 10^12 only"


def split_step(step: Step) -> tuple[int, int]:
    """Whole and millionths, as Neptune stores a step."""
    if isinstance(step, int):
        return step, 0
    whole, micro = divmod(round(step * 1e6), 1_000_000)
    return int(whole), int(micro)


def configs(params: Mapping[str, Any], names: NameMap) -> tuple[dict[str, Any], bool]:
    """Flat, typed `log_configs` values, and whether any was cut."""
    values: dict[str, Any] = {}
    cut = False
    for key, value in flatten_params(params).items():
        name = names(key)
        if name != key:
            values[f"tracker_bridge/names/{name}"] = clean(key)[:MAX_TEXT]
        typed = config(value)
        cut = cut or (isinstance(typed, str) and len(typed) > MAX_TEXT)
        values[name] = cut_text(typed) if isinstance(typed, str) else typed
    return values, cut


def config(value: Any) -> Any:
    """One plain value: bool, int64, float (NaN and infinities as they are), str, datetime or a list of distinct str."""
    if isinstance(value, (bool, float, datetime)):
        return value
    if isinstance(value, int):
        return value if -INT64 <= value < INT64 else str(value)
    if isinstance(value, (list, tuple)) and _fits_a_set(value):
        return [clean(part) for part in value]
    return clean(param_text(value))


def _fits_a_set(value: Sequence[Any]) -> bool:
    # Neptune keeps a set of strings: a repeated entry, or too long a one, survives as text only.
    strings = bool(value) and all(isinstance(part, str) for part in value)
    return strings and len(set(value)) == len(value) and sum(map(len, value)) <= MAX_TEXT


def clean(text: str) -> str:
    r"""`text` without lone surrogates, which protobuf cannot encode; they become `\udXXX`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def cut_text(text: str) -> str:
    """`text`, visibly shortened if it is longer than `MAX_TEXT`."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT - 60]} ... [cut by tracker_bridge: {len(text)} characters]"


def tag_texts(tags: Mapping[str, str | None]) -> set[str]:
    """Tags as Neptune's plain strings: `name`, or `name:value`."""
    return {cut_text(clean(tag if value is None else f"{tag}:{value}")) for tag, value in tags.items()}


def narrow_histogram(
    edges: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """At most `MAX_BINS` bins, neighbours merged: edges [B + 1], counts [B]."""
    together = -(-len(counts) // MAX_BINS)
    if together <= 1:
        return edges, counts
    starts = np.arange(0, len(counts), together)
    return np.append(edges[starts], edges[-1]), np.add.reduceat(counts, starts)


def provenance_configs(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the SDK's source tracking would say, about the training script."""
    arguments = [str(part) for part in provenance.get("arguments") or ()]
    found = {
        "source_code/run_command": " ".join([str(provenance.get("script") or ""), *arguments]).strip(),
        "source_code/commit/commit_id": provenance.get("git_commit"),
        "runtime/host": provenance.get("host"),
        "runtime/user": provenance.get("user"),
        "runtime/python": provenance.get("python"),
    }
    return {name: cut_text(clean(str(value))) for name, value in found.items() if value}
