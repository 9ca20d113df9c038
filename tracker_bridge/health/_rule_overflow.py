"""Storms of overflow-skipped steps under a gradient scaler. A few, and many at the start, are its normal search."""

from __future__ import annotations

import numpy as np

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._state import Finding, Layers, Skips

RULE = "overflow_storm"
_HISTORY = 64
_LEAST = 16


def note_success(skips: Skips) -> None:
    """A step went through."""
    skips.in_a_row = 0
    skips.succeeded = True
    skips.history = (skips.history << 1) & ((1 << _HISTORY) - 1)
    if skips.history == 0:
        skips.storm = False


def check(
    skips: Skips, values: np.ndarray, present: np.ndarray | None, layers: Layers, config: HealthConfig
) -> Finding | None:
    """A step was skipped."""
    skips.in_a_row += 1
    skips.history = ((skips.history << 1) | 1) & ((1 << _HISTORY) - 1)
    if skips.storm:
        return None
    recent = skips.history.bit_count()
    row = skips.in_a_row >= (config.skips_in_a_row if skips.succeeded else config.skips_at_start)
    often = skips.succeeded and recent >= max(_LEAST, int(config.skips_share * _HISTORY))
    if not row and not often:
        return None
    skips.storm = True
    bad = ~np.isfinite(values)
    if present is not None:
        bad &= present
    slots = np.flatnonzero(bad)
    everywhere = len(slots) == len(values)
    names = () if everywhere else tuple(layers.names[slot] for slot in slots[::-1])
    text = (
        f"{skips.in_a_row} steps in a row and {recent} of the last {_HISTORY} samples were skipped: nothing is learned."
    )
    if names:
        text += f" The overflow begins at {names[0]}."
    evidence = {
        "in_a_row": skips.in_a_row,
        "of_last_64": recent,
        "non_finite_layers": len(slots),
        "layers": len(values),
    }
    return Finding(
        RULE, "error", "The gradient scaler keeps skipping steps because gradients overflow", text, names, evidence
    )
