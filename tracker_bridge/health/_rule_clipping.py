"""Gradient clipping: always active, or suddenly gone. Reads coefficients, not layers."""

from __future__ import annotations

import statistics

import numpy as np

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._layers import number, span
from tracker_bridge.health._state import Finding, Layers, Sample, TableState

SATURATED = "clip_saturation"
UNCLIPPED = "clipping_stopped"
_GONE = 5


def check(state: TableState, sample: Sample, layers: Layers, config: HealthConfig) -> Finding | None:
    """Saturation (information) or the end of clipping that was needed (warning)."""
    clipping = state.clipping
    coefficient = sample.clip_coefficient
    if sample.max_norm is not None:
        clipping.max_norm = sample.max_norm
    if coefficient is None:
        return _gone(state, sample, layers)
    clipping.unclipped, clipping.lost = 0, False
    if len(clipping.coefficients) < config.clipped_samples:
        clipping.coefficients.append(coefficient)
    else:
        clipping.coefficients[clipping.at] = coefficient
        clipping.at = (clipping.at + 1) % config.clipped_samples
    clipping.count += 1
    # The first samples of a run are clipped in most healthy runs.
    if clipping.count < 2 * config.clipped_samples or clipping.count % 10:
        return None
    share = sum(c < 1.0 for c in clipping.coefficients) / len(clipping.coefficients)
    middle = statistics.median(clipping.coefficients)
    if share < config.clipped_share or middle > config.clipped_coefficient:
        clipping.saturated = clipping.saturated and share > config.clipped_share / 2
        return None
    if clipping.saturated:
        return None
    clipping.saturated = True
    evidence = {"clipped_share": share, "median_coefficient": middle, "max_norm": clipping.max_norm}
    return Finding(
        SATURATED,
        "info",
        f"{share:.0%} of the last {len(clipping.coefficients)} samples were clipped, typically to {number(middle)}",
        "Clipping acts as a smaller learning rate here, not as a guard against outliers.",
        (),
        evidence,
    )


def _gone(state: TableState, sample: Sample, layers: Layers) -> Finding | None:
    clipping = state.clipping
    recent = clipping.coefficients
    if sample.post_clip or clipping.lost or len(recent) < 20 or sum(c < 1.0 for c in recent) * 2 < len(recent):
        return None
    if clipping.max_norm is not None and sample.total <= clipping.max_norm:
        return None
    clipping.unclipped += 1
    if clipping.unclipped < _GONE:
        return None
    clipping.lost = True
    order = np.argsort(-np.where(np.isfinite(sample.values), sample.values, 0.0), kind="stable")[:20]
    names = tuple(layers.names[slot] for slot in order)
    limit = "" if clipping.max_norm is None else f" (the limit was {number(clipping.max_norm)})"
    return Finding(
        UNCLIPPED,
        "warning",
        "Gradients were clipped and no longer are, though they are as large",
        f"For {_GONE} samples no clipping was seen at a norm of {number(sample.total)}{limit}; largest: {span(names)}.",
        names,
        {
            "total": sample.total,
            "max_norm": clipping.max_norm,
            "clipped_share_before": sum(c < 1 for c in recent) / len(recent),
        },
    )
