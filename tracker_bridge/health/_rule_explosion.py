"""Explosion: the total grows and goes on growing, or early layers get far more gradient than late ones."""

from __future__ import annotations

import math
import statistics

import numpy as np

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._layers import number, span
from tracker_bridge.health._state import Finding, Layers, TableState
from tracker_bridge.health._window import RECENT, medians

RULE = "explosion"


def check(state: TableState, layers: Layers, config: HealthConfig, learning: bool) -> Finding | None:
    """To be called when the baseline was refreshed. `learning`: whether the loss is falling."""
    window = state.window
    if window.count < config.warm_up + RECENT:
        return None
    recent = window.recent()
    total = recent[-1].tolist()
    half = RECENT // 2
    middle = statistics.median(total)
    growth = middle - float(window.before[-1])
    needed = math.log(config.explosion_ratio_learning if learning else config.explosion_ratio)
    rising = statistics.median(total[half:]) > statistics.median(total[:half])
    # A network that fits its data has norms near zero, which any hard batch multiplies; not above where it began.
    above_start = state.early is None or middle > float(state.early[-1])
    if growth < needed or not rising or not above_start:
        state.exploding = state.exploding and growth > math.log(2)
        return None
    if state.exploding:
        return None
    state.exploding = True
    growths = medians(recent) - window.before
    ranked = np.argsort(-growths[:-1], kind="stable")[:20]
    culprits = tuple(layers.names[slot] for slot in ranked)
    now, baseline = math.exp(middle), math.exp(float(window.before[-1]))
    evidence = {"total": now, "baseline": baseline, "ratio": now / baseline, "samples": RECENT}
    return Finding(
        RULE,
        "error",
        f"Gradients are exploding: the norm has grown {number(now / baseline)} times and goes on",
        f"Median norm of the last {RECENT} samples {number(now)}, before them {number(baseline)}; fastest: "
        f"{span(culprits)}.",
        culprits,
        evidence,
    )
