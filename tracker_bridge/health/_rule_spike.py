"""Spikes: a sample far above the recent past, of the total or of single layers. Robust in log scale."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._layers import number, span
from tracker_bridge.health._signals import Loss
from tracker_bridge.health._state import Finding, Layers, Sample, TableState
from tracker_bridge.health._window import Window

RULE = "spike"
EXPLOSION = "explosion"
_MOST_LAYERS = 20


def arm(state: TableState, config: HealthConfig) -> None:
    """Compute the thresholds from the refreshed baseline."""
    window = state.window
    record = window.high + np.float32(math.log(config.record_ratio))
    above = np.maximum(window.sigma * config.layer_spike_sigmas, math.log(config.layer_spike_ratio))
    above[-1] = max(float(window.sigma[-1]) * config.spike_sigmas, math.log(config.spike_ratio))
    state.high = np.maximum(window.median + above, record)
    far = np.maximum(window.sigma * config.lone_spike_sigmas, math.log(config.lone_spike_ratio))
    state.lone = np.maximum(window.median + far, record)
    below = np.minimum(window.sigma * -config.layer_spike_sigmas, math.log(config.collapse_ratio))
    state.floor = (window.median + below)[:-1]
    unseen = window.seen < config.warm_up
    if np.count_nonzero(unseen):
        state.high[unseen] = np.inf
        state.lone[unseen] = np.inf
        state.floor[unseen[:-1]] = -np.inf


def check(state: TableState, sample: Sample, layers: Layers, config: HealthConfig, loss: Loss) -> Finding | None:
    """A finding if this sample is a spike. The sample must not be in the window yet."""
    if state.window.count < config.warm_up or not state.armed:
        return _early(state, sample, layers, config)
    over = sample.log > state.high
    if sample.valid is not None:
        over &= sample.valid
    if not np.count_nonzero(over):
        return None
    rise = float(sample.log[-1] - state.window.median[-1])
    if _raised(state.window) and loss.dropping and rise < math.log(config.explosion_ratio_learning):
        # A network that leaves a plateau: norms have been rising for some samples, and the loss goes down.
        return None
    layer_over = over[:-1]
    if not over[-1]:
        # When a network finds its way, layers with hardly any gradient may gain a thousandfold overnight: harmless as
        # long as they are a small part of the step.
        layer_over &= sample.log[:-1] > sample.log[-1] + np.float32(math.log(config.layer_spike_share))
        # Several layers must agree, or one be far out: each of L layers draws every sample.
        enough = int(layer_over.sum()) >= max(config.layer_spike_least, math.ceil(0.02 * len(layer_over)))
        if not enough and not bool((layer_over & (sample.log > state.lone)[:-1]).any()):
            return None
    return _finding(state, sample, layers, over)


def _early(state: TableState, sample: Sample, layers: Layers, config: HealthConfig) -> Finding | None:
    count = state.window.count
    if count < 4 or state.window.seen[-1] < count or (sample.valid is not None and not sample.valid[-1]):
        return None
    past = state.window.ring[:, : min(count, state.window.filled)]
    if sample.log[-1] - past[-1].max() < math.log(config.early_spike_ratio):
        return None
    state.window.refresh(config.sigma_floor)
    return _finding(state, sample, layers, np.ones(len(sample.log), dtype=np.bool_))


def _finding(state: TableState, sample: Sample, layers: Layers, over: Any) -> Finding:
    window = state.window
    ratio = sample.log - window.median
    if sample.valid is not None:
        ratio = np.where(sample.valid, ratio, -np.inf)
    named = over[:-1] if over[:-1].any() else np.ones(len(layers.names), dtype=np.bool_)
    ranked = np.flatnonzero(named)[np.argsort(-ratio[:-1][named], kind="stable")]
    ranked = ranked[np.isfinite(ratio[ranked])][:_MOST_LAYERS]
    culprits = tuple(layers.names[slot] for slot in ranked)
    factor = math.exp(min(float(ratio[-1]), 700.0))
    baseline = math.exp(float(window.median[-1]))
    tops = {layers.names[slot]: math.exp(min(float(ratio[slot]), 700.0)) for slot in ranked[:3]}
    evidence = {
        "total": sample.total,
        "baseline": baseline,
        "ratio": factor,
        "sigmas": float(ratio[-1] / window.sigma[-1]) if window.sigma[-1] > 0 else math.inf,
        "layers_above": int(over[:-1].sum()),
        "layers": len(layers.names),
        "top": tops,
    }
    leading = ", ".join(f"{name} (x{number(value)})" for name, value in tops.items())
    if over[-1]:
        title = f"Gradient norm spiked to {number(sample.total)}, {number(factor)} times its usual {number(baseline)}"
    else:
        title = f"Gradient norms of {span(culprits, 1)} spiked, x{number(next(iter(tops.values())))}"
    rule, severity = RULE, "warning"
    if over[-1] and _growing(window):
        # Not one bad step but the last of many, each larger: the other rule's story, told now.
        rule, severity, state.exploding = EXPLOSION, "error", True
        title = (
            f"Gradients are exploding: the norm has grown to {number(sample.total)}, {number(factor)} times its usual"
        )
    text = f"{int(over[:-1].sum())} of {len(layers.names)} layers are far above their own past; most: {leading}."
    return Finding(rule, severity, title, text, culprits, evidence)


def _raised(window: Window) -> bool:
    """Whether the total of the last samples is twice its usual."""
    return bool(statistics.median(window.recent(8)[-1].tolist()) - float(window.median[-1]) > math.log(2))


def _growing(window: Window) -> bool:
    if window.count < 16 or not _raised(window):
        return False
    recent = window.recent(8)[-1].tolist()
    return bool(statistics.median(recent[4:]) > statistics.median(recent[:4]))
