"""What delivery does to points for a tracker that cannot hold them, turned back: names and non-finite values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tracker_bridge.records import Artifact, Histogram, Metrics, Record, Text

_COMPANION = "/non_finite"
_CODES = {1.0: math.nan, 2.0: math.inf, 3.0: -math.inf}


def restored_points(row: Metrics, names: Mapping[str, str]) -> Metrics:
    """The row with original names (`names`: tracker's -> original); `x/non_finite` is `x` at its NaN or infinity."""
    values: dict[str, float] = {}
    for name, value in row.values.items():
        original = names.get(name, name)
        if original.endswith(_COMPANION) and value in _CODES:
            original, value = original.removesuffix(_COMPANION), _CODES[value]
        values[original] = value
    return Metrics(row.time_ns, row.step, values)


def renamed(record: Record, names: Mapping[str, str]) -> Record:
    """The record under its original name (`names`: tracker's -> original)."""
    if not names:
        return record
    if isinstance(record, Metrics):
        return Metrics(record.time_ns, record.step, {names.get(k, k): v for k, v in record.values.items()})
    if isinstance(record, Text):
        return Text(record.time_ns, names.get(record.name, record.name), record.text, record.step)
    if isinstance(record, Histogram):
        name = names.get(record.name, record.name)
        return Histogram(record.time_ns, name, record.step, record.edges, record.counts)
    if isinstance(record, Artifact):
        name = names.get(record.name, record.name)
        return Artifact(record.time_ns, name, record.path, record.step, record.media_type)
    return record


def flagged_value(text: str) -> Any:
    """A number out of a file name; None if it is none."""
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return None
