"""A story as the data that the report's page reads: JSON, with arrays as compressed base64. Pure functions."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_bridge.report._diagnose import verdict
from tracker_bridge.report._downsample import encode, even_starts, extremes, scale_of, thin
from tracker_bridge.report._story import Model, Series, Story

CELLS = 2_000_000
"""Codes (two bytes each) over all runs of a report; what keeps it below 10 MB."""
_LINE_BINS = 2000
_MOST_ALERTS = 500
_MOST_TEXT = 20_000


def payload(stories: Sequence[Story]) -> dict[str, Any]:
    """The data of a report of these runs."""
    budget = CELLS // max(1, sum(len(story.models) for story in stories))
    differing = _differing([flatten(story.params) for story in stories])
    data: dict[str, Any] = shown(
        {"runs": [_run(story, budget, differing) for story in stories], "differing": differing}
    )
    return data


def shown(value: Any) -> Any:
    """The same data with every control and direction character of its texts and names written out, as in Python."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in value)
    if isinstance(value, dict):
        return {shown(name): shown(held) for name, held in value.items()}
    if isinstance(value, list):
        return [shown(held) for held in value]
    return value


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested hyper-parameters as `a/b` names."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _run(story: Story, budget: int, differing: Sequence[str]) -> dict[str, Any]:
    worst = story.worst()
    params = flatten(story.params)
    return {
        "id": story.run_id,
        "title": story.title,
        "project": story.project,
        "experiment": story.experiment,
        "status": story.status,
        "message": story.message[:_MOST_TEXT],
        "created_ms": story.created_ns // 1_000_000,
        "finished_ms": None if story.finished_ns is None else story.finished_ns // 1_000_000,
        "params": {name: _text(value) for name, value in params.items()},
        "differing": [_text(params.get(name, "")) for name in differing],
        "tags": [name if value is None else f"{name}: {value}" for name, value in story.tags.items()],
        "verdict": verdict(story),
        "severity": "ok" if worst is None else worst.severity,
        "gravest": 0 if worst is None else story.alerts.index(worst),
        "alerts": [
            {
                "rule": alert.rule,
                "step": _number(alert.step),
                "severity": alert.severity,
                "title": alert.title,
                "text": alert.text.partition(" Check first: ")[0][:_MOST_TEXT],
                "layers": list(alert.layers[:20]),
                "changed": _texts(alert.evidence.get("changed_before")),
                "check": _texts(alert.evidence.get("check")),
            }
            for alert in story.alerts[:_MOST_ALERTS]
        ],
        "alerts_left_out": max(0, len(story.alerts) - _MOST_ALERTS),
        "models": [_model(model, budget) for model in story.models if len(model.norms)],
        "loss": _series(story.loss),
        "learning_rate": _series(story.learning_rate),
    }


def _model(model: Model, budget: int) -> dict[str, Any]:
    norms = model.norms
    count, layers = norms.values.shape
    bins = max(50, budget // max(1, layers))
    if count > bins:
        bins = max(25, bins // 2)  # two codes a bin then
    starts = even_starts(count, bins)
    ends = np.append(starts[1:], count) - 1
    scale = scale_of(norms.values[norms.present])
    codes = encode(norms.values, norms.present, scale)
    smallest, largest = extremes(codes, starts)
    total_scale = scale_of(norms.total)
    total = encode(norms.total[:, None], np.ones((count, 1), dtype=np.bool_), total_scale)
    total_low, total_high = extremes(total, starts)
    single = len(starts) == count
    coefficient = np.where(np.isnan(norms.clip_coefficient), np.inf, norms.clip_coefficient)
    return {
        "name": model.name,
        "layers": list(norms.names),
        "numel": model.numel.tolist(),
        "samples": count,
        "bins": len(starts),
        "first_step": _pack(norms.steps[starts].astype(np.float64)),
        "last_step": _pack(norms.steps[ends].astype(np.float64)),
        "scale": [scale.low, scale.high],
        "high": _pack(largest.T),
        "low": None if single else _pack(smallest.T),
        "total_scale": [total_scale.low, total_scale.high],
        "total_high": _pack(total_high[:, 0]),
        "total_low": _pack(total_low[:, 0]),
        "max_norm": _pack(_largest(norms.max_norm, starts)),
        "coefficient": _pack(np.minimum.reduceat(coefficient, starts).astype(np.float32)),
        "skipped": _pack(np.add.reduceat(norms.skipped.astype(np.float32), starts)),
        "post_clip": bool(norms.post_clip.any()),
        "stats": _stats(model),
    }


def _largest(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
    """Largest of each bin, NaN where there is none."""
    held = np.maximum.reduceat(np.where(np.isnan(values), -np.inf, values), starts)
    return np.where(np.isneginf(held), np.nan, held).astype(np.float32)


def _stats(model: Model) -> list[list[float | None]]:
    """For each layer: last, median and largest norm, the step of the largest, zeros, non-finite and absent samples."""
    norms = model.norms
    rows: list[list[float | None]] = []
    for slot in range(len(norms.names)):
        values = norms.values[norms.present[:, slot], slot]
        finite = values[np.isfinite(values)]
        steps = norms.steps[norms.present[:, slot]][np.isfinite(values)]
        rows.append(
            [
                _number(values[-1]) if len(values) else None,
                _number(np.median(finite)) if len(finite) else None,
                _number(finite.max()) if len(finite) else None,
                _number(steps[finite.argmax()]) if len(finite) else None,
                int((values == 0).sum()),
                int(len(values) - len(finite)),
                int(len(norms) - len(values)),
            ]
        )
    return rows


def _series(series: Series | None) -> dict[str, Any] | None:
    if series is None or not len(series.values):
        return None
    steps, values = thin(series.steps, series.values, _LINE_BINS)
    return {
        "name": series.name,
        "steps": _pack(np.asarray(steps, dtype=np.float64)),
        "values": _pack(values.astype(np.float64)),
    }


def _pack(array: npt.NDArray[Any]) -> dict[str, str]:
    kinds = {"uint16": "u2", "float32": "f4", "float64": "f8"}
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    return {"kind": kinds[array.dtype.name], "data": base64.b64encode(zlib.compress(data, 6)).decode()}


def _number(value: Any) -> float | None:
    # JSON has no NaN and no infinity.
    number = float(value)
    return number if math.isfinite(number) else None


def _text(value: Any) -> str:
    return str(value)[:500]


def _texts(value: Any) -> list[str]:
    return [str(item)[:_MOST_TEXT] for item in value[:20]] if isinstance(value, (list, tuple)) else []


def _differing(params: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(params) < 2:
        return []
    names = dict.fromkeys(name for one in params for name in one)
    return [name for name in names if len({_text(one.get(name, "")) for one in params}) > 1][:8]
