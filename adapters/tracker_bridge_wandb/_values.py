"""Bridge values in W&B's forms. Pure; imports no SDK."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracker_bridge.adapter import NameMap, NameRule, param_text

AXIS = "global_step"
"""The column that holds the bridge's step; every chart uses it as its x axis. W&B's own `_step` counts rows."""
NAMES = NameRule(reserved=(r"_(step|timestamp|runtime|wandb)", AXIS))
MAX_TAG = 64
MAX_PARAM = 99_000
"""Characters of one config value; the whole of a longer one is in the file `tracker_bridge/params.json`. Over 100,000
bytes the SDK warns on stderr."""
MAX_ROW = 8_000_000
"""Bytes of one row as JSON. A server takes 10,383,360; the SDK drops a longer row, and every later summary with it."""
MAX_ROW_POINTS = 10_000
"""The courier cuts wider rows, so that with names of usual length no single one comes near `MAX_ROW`."""
MAX_BINS = 512
EXIT_CODES = {"finished": 0, "failed": 1, "killed": 255, "crashed": 2}
"""W&B knows finished (0) and failed (others); 255 is what its SDK reports after Ctrl-C."""
_tag_names = NameMap(NameRule(max_length=MAX_TAG))
_RESERVED_FILES = frozenset(
    {"config.yaml", "output.log", "requirements.txt", "wandb-metadata.json", "wandb-summary.json"}
)


def on_axis(step: float | None) -> float | None:
    """The step as the axis column has it: an integer where it is whole, so that 2 and 2.0 are one place."""
    return int(step) if isinstance(step, float) and step.is_integer() else step


def cells(names: tuple[str, ...], values: npt.NDArray[np.float64]) -> dict[str, str]:
    """Column -> JSON; NaN and the infinities as W&B spells them."""
    numbers = values.tolist()
    # msgspec writes finite numbers eight times as fast, and makes null of the others.
    texts = json.dumps(numbers)[1:-1].split(", ") if not np.isfinite(values).all() else _finite(numbers)
    return dict(zip(names, texts, strict=True))


def json_size(columns: Mapping[str, str]) -> int:
    """Bytes of the columns as JSON, about."""
    return sum(map(len, columns)) + sum(map(len, columns.values())) + 8 * len(columns)


def parts(columns: dict[str, str], limit: int) -> list[tuple[dict[str, str], int]]:
    """The columns in parts of at most `limit` bytes, at least one column each, with the bytes of each."""
    whole = json_size(columns)
    if whole <= limit:
        return [(columns, whole)]
    found: list[tuple[dict[str, str], int]] = []
    part: dict[str, str] = {}
    size = 0
    for name, value in columns.items():
        one = json_size({name: value})
        if part and size + one > limit:
            found.append((part, size))
            part, size = {}, 0
        part[name] = value
        size += one
    return [*found, (part, size)]


def histogram_cell(edges: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> str:
    """JSON of W&B's own histogram, at most `MAX_BINS` bins (neighbours merged)."""
    together = -(-len(counts) // MAX_BINS)
    if together > 1:
        starts = np.arange(0, len(counts), together)
        edges, counts = np.append(edges[starts], edges[-1]), np.add.reduceat(counts, starts)
    numbers = [int(count) if count.is_integer() else count for count in counts.tolist()]
    return json.dumps({"_type": "histogram", "values": numbers, "bins": edges.tolist()})


def text_page(text: str) -> str:
    """A small HTML page that shows `text` as it is."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return f'<meta charset="utf-8"><pre style="white-space: pre-wrap">{html.escape(clean, quote=False)}</pre>'


def config(params: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Nested JSON values for `run.config`, and whether any was cut."""
    cut: list[bool] = []
    return {_config_key(key): _config_value(value, cut) for key, value in params.items()}, bool(cut)


def tags(now: Mapping[str, str | None]) -> tuple[str, ...]:
    """Tags as W&B's strings of 1 to 64 characters: `name`, or `name:value`."""
    texts = (tag if value is None else f"{tag}:{value}" for tag, value in now.items())
    return tuple(dict.fromkeys(map(_tag_names, texts)))


def file_name(name: str, step: float | None) -> str:
    """A relative path inside the run's files that clashes with none of W&B's own."""
    clean = NameMap(NameRule(path=True, max_length=200, unit="bytes"))(name)
    if clean in _RESERVED_FILES or clean.startswith("media/"):
        clean = f"files/{clean}"
    if step is None:
        return clean
    folder, slash, last = clean.rpartition("/")
    stem, dot, ending = last.rpartition(".")
    return f"{folder}{slash}{stem}_step{step}{dot}{ending}" if stem else f"{clean}_step{step}"


def media_name(name: str, step: float | None, digest: str, ending: str) -> str:
    """Where W&B keeps the images of a column: `media/images/<name>_<step>_<hash>.<ending>`."""
    clean = re.sub(r"[^\w./-]", "_", NameMap(NameRule(path=True, max_length=150, unit="bytes"))(name))
    return f"media/images/{clean}_{0 if step is None else step}_{digest[:20]}{ending}"


def _finite(numbers: list[float]) -> list[str]:
    return msgspec.json.encode(numbers)[1:-1].decode().split(",")


def _config_key(key: Any) -> str:
    text = str(key).encode("utf-8", "backslashreplace").decode("utf-8")
    return f"x{text}" if text.startswith("_wandb") else text


def _config_value(value: Any, cut: list[bool]) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        # W&B's config has no NaN (it becomes null).
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping) and value:  # the service drops an empty one
        return {_config_key(key): _config_value(inner, cut) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_config_value(inner, cut) for inner in value]
    text = param_text(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > MAX_PARAM:
        cut.append(True)
        return f"{text[: MAX_PARAM - 60]} ... [cut by tracker_bridge: {len(text)} characters]"
    return text
