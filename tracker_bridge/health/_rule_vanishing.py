"""Vanishing gradients: by depth, by level, and a layer's collapse below its own past.

Depth alone is not enough. Where a tanh or ReLU network is initialised too small, activations shrink forwards as fast as
gradients shrink backwards, so weight gradients are equal over depth and only their level tells (Glorot and Bengio 2010,
section 4.2). Biases, and weights under biases, do show the depth.
"""

from __future__ import annotations

import math

import numpy as np

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._layers import number, span
from tracker_bridge.health._state import Finding, Layers, Sample, TableState
from tracker_bridge.health._window import medians

RULE = "vanishing"
_FIRST_CHECKS = (10, 20)
_EVERY = 16
_UNDERFLOW = 1e-12
_TINY = 1e-30
_BEGAN = 4
"""Samples that tell where a run began, for `_withered`."""
_KEPT = 0.3
"""Part of its beginning that the total must have kept: in a net that fits its data at once all norms fall together."""


def due(count: int) -> bool:
    """Whether depth and level are judged after this many samples."""
    return count in _FIRST_CHECKS or count % _EVERY == 0


def check(state: TableState, layers: Layers, config: HealthConfig, judge_level: bool) -> Finding | None:
    """Depth, and level if `judge_level`, from the median of the last few samples."""
    window = state.window
    log = medians(window.recent(min(window.count, 8)))[:-1].astype(np.float64)
    rms = log - np.log(layers.root_numel)
    zero = (state.zeros.now > 0) & ~state.zeros.told
    rms[state.zeros.told] = np.nan
    rms[zero] = math.log(_TINY)
    rms[(window.seen[:-1] == 0) & ~zero] = np.nan
    if state.absent.live:
        rms[state.absent.now > 0] = np.nan
    finding = _depth(rms, zero, layers, config)
    if finding is None and judge_level:
        finding = _level(np.where(zero, np.nan, rms), layers, config)
    if finding is None and window.count <= config.warm_up:
        finding = _withered(state, rms, layers, config)
    if finding is None:
        return None
    told, state.vanished_at = state.vanished_at, window.count
    # It comes and goes near the threshold; only after two windows without it is it a new event.
    if told is not None and window.count - told < 2 * config.window:
        return None
    # What underflowed to zero here is the same trouble, not a dead layer.
    state.zeros.told |= zero
    finding.evidence.setdefault("from_start", window.count <= _FIRST_CHECKS[-1])
    return finding


def _depth(rms: np.ndarray, zero: np.ndarray, layers: Layers, config: HealthConfig) -> Finding | None:
    rise, correlation = layers.groups.fit(rms)
    with np.errstate(invalid="ignore"):
        hits = (rise >= -math.log(config.vanishing_depth_ratio)) & (correlation >= config.vanishing_correlation)
    best: tuple[bool, float, int] | None = None
    for index in np.flatnonzero(hits):
        slots = layers.groups.group(int(index))
        alive = rms[slots][~zero[slots]]
        # Zeros below a steep slope are underflow; zeros below a flat one are dead layers, another rule's.
        if zero[slots].any() and (not len(alive) or alive.min() - alive.max() > math.log(_UNDERFLOW)):
            continue
        # A group of weights tells more than one of biases, however steep.
        candidate = (bool(layers.weights[slots[0]]), float(rise[index]), int(index))
        best = candidate if best is None else max(best, candidate)
    if best is None:
        return None
    _, steepness, chosen = best
    slots = layers.groups.group(chosen)
    names = tuple(layers.names[slot] for slot in slots)
    per_layer = math.exp(-steepness / (len(slots) - 1))
    first, last = math.exp(rms[slots[0]]), math.exp(rms[slots[-1]])
    order = slots[np.argsort(rms[slots], kind="stable")]
    evidence = {
        "kind": "depth",
        "first": names[0],
        "last": names[-1],
        "first_rms": first,
        "last_rms": last,
        "ratio": math.exp(-steepness),
        "ratio_per_layer": per_layer,
        "depth": len(slots),
    }
    return Finding(
        RULE,
        "error",
        f"Gradients vanish towards the input: {names[0]} gets {number(math.exp(-steepness))} of what {names[-1]} gets",
        f"Over {len(slots)} layers of one kind the RMS gradient falls from {number(last)} to {number(first)}, by a "
        f"factor of {number(per_layer)} a layer.",
        tuple(layers.names[slot] for slot in order[:20]),
        evidence,
    )


def _level(rms: np.ndarray, layers: Layers, config: HealthConfig) -> Finding | None:
    judged = layers.weights & ~np.isnan(rms)
    low = judged & (rms < math.log(config.vanishing_rms))
    if not low.any() or int(low.sum()) * 2 < int(judged.sum()):
        return None
    slots = np.flatnonzero(low)
    order = slots[np.argsort(rms[slots], kind="stable")]
    names = tuple(layers.names[slot] for slot in order[:20])
    middle = math.exp(float(np.median(rms[slots])))
    evidence = {
        "kind": "level",
        "median_rms": middle,
        "threshold": config.vanishing_rms,
        "layers_below": len(slots),
        "layers": int(judged.sum()),
    }
    return Finding(
        RULE,
        "error",
        f"Gradients have vanished in {len(slots)} of {int(judged.sum())} weights (median RMS {number(middle)})",
        f"Below {number(config.vanishing_rms)} even Adam's epsilon outweighs them. Smallest: {span(names)}.",
        names,
        evidence,
    )


def _withered(state: TableState, rms: np.ndarray, layers: Layers, config: HealthConfig) -> Finding | None:
    """Most weights fell far below where they began, and the total did not, before any baseline could be trusted.

    A learning rate much too large does that within a dozen steps, while depth still looks even: everything below the
    last layers loses its gradient at once.
    """
    window = state.window
    if window.count < _BEGAN + 8:
        return None
    began = medians(window.ring[:, :_BEGAN])
    now = medians(window.recent(8))
    fall = (now - began)[:-1].astype(np.float64)
    judged = layers.weights & ~np.isnan(rms) & (window.seen[:-1] >= window.count)
    low = judged & (fall < math.log(config.collapse_ratio))
    kept = float(now[-1] - began[-1])
    if int(low.sum()) < 3 or int(low.sum()) * 2 < int(judged.sum()) or kept < math.log(_KEPT):
        return None
    slots = np.flatnonzero(low)[::-1]
    names = tuple(layers.names[slot] for slot in slots)
    middle = math.exp(max(float(np.median(fall[slots])), -700.0))
    evidence = {
        "kind": "withered",
        "layers_below": len(names),
        "layers": int(judged.sum()),
        "ratio_to_start": middle,
        "total_ratio_to_start": math.exp(kept),
        "from_start": False,
    }
    return Finding(
        RULE,
        "error",
        f"Gradients of {len(names)} of {int(judged.sum())} weights vanished within {window.count} samples, up to "
        f"{names[0]}",
        f"Typically to {number(middle)} of the first {_BEGAN} samples, while the total is {number(math.exp(kept))} "
        "times what it was. The layer nearest to the output among them is where the signal is lost.",
        names[:20],
        evidence,
    )


def check_collapse(
    state: TableState, sample: Sample, layers: Layers, config: HealthConfig, open_: bool
) -> Finding | None:
    """A layer far below its own past while the total is not; the last such layer in forward order blocks the rest.

    While the rule may not alert (`open_` is False) what it finds stays untold and is found again later.
    """
    low = sample.log[:-1] < state.floor
    if sample.zero is not None:
        low |= sample.zero & np.isfinite(state.floor)
    if not state.low.live and not np.count_nonzero(low):
        return None
    known = ~low if sample.present is None else ~low & sample.present
    state.low.update(low if sample.present is None else low & sample.present, known)
    hit = (state.low.now >= config.collapse_samples) & ~state.low.told & ~state.zeros.told
    if not open_ or not hit.any():
        return None
    window = state.window
    drop = (sample.log - window.median)[:-1]
    kept = float(sample.log[-1] - window.median[-1])
    # In a run that converges, all norms fall together; that is no collapse.
    hit &= kept - drop >= math.log(100.0)
    if not hit.any():
        return None
    named = (state.low.now >= 2) & ~state.low.told
    state.low.told |= named
    slots = np.flatnonzero(named)[::-1]
    names = tuple(layers.names[slot] for slot in slots)
    worst = {layers.names[slot]: math.exp(max(float(drop[slot]), -700.0)) for slot in slots[:3]}
    evidence = {
        "kind": "collapse",
        "layers_below": len(names),
        "layers": len(layers.names),
        "ratio_to_past": worst,
        "total_ratio_to_past": math.exp(kept),
    }
    return Finding(
        RULE,
        "error",
        f"Gradients of {len(names)} layers collapsed to {number(worst[names[0]])} of their past, up to {names[0]}",
        f"{span(names)} fell while the total is {number(math.exp(kept))} of its past. The layer nearest to the "
        "output among them is where the signal is lost.",
        names[:20],
        evidence,
    )
