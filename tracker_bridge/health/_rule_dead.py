"""Layers without gradient: exact zeros while others live, and `grad is None`. Remembers run lengths for each layer."""

from __future__ import annotations

import numpy as np

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._layers import span
from tracker_bridge.health._state import Finding, Layers, Runs, Sample, TableState

DEAD = "dead_layer"
MISSING = "no_gradient"


def check_dead(state: TableState, sample: Sample, layers: Layers, config: HealthConfig, open_: bool) -> Finding | None:
    """Exact zeros for several samples while the model as a whole has gradient.

    While the rule may not alert (`open_` is False) what it finds stays untold and is found again later.
    """
    if sample.total == 0.0:
        return _silent(state, layers, config)
    state.silent = 0
    zeros = state.zeros
    if sample.zero is None and not zeros.live:
        if np.count_nonzero(zeros.ever) < len(zeros.ever):
            zeros.ever |= True if sample.present is None else sample.present
        return None
    inside = np.zeros(len(layers.names), dtype=np.bool_) if sample.zero is None else sample.zero
    outside = ~inside if sample.present is None else sample.present & ~inside
    zeros.update(inside, outside)
    slots = _newly(zeros, config.dead_samples, config.never_alive_samples) if open_ else None
    if slots is None:
        return None
    # Backward hands zeros on to everything before it: the last dead layer in forward order is the cause.
    names = tuple(layers.names[slot] for slot in slots[::-1])
    before = int(zeros.ever[slots].sum())
    evidence = {
        "dead_layers": len(names),
        "layers": len(layers.names),
        "samples": int(zeros.now[slots].max()),
        "had_gradient_before": before,
        "alive_before": bool((zeros.now[: slots[0]] == 0).any()),
        "total": sample.total,
    }
    state_text = "had gradient before" if before else "never had any"
    return Finding(
        DEAD,
        "error" if before else "warning",
        f"{len(names)} of {len(layers.names)} layers get gradients of exactly zero, up to {names[0]}",
        f"{span(names)} ({state_text}) while the model has a gradient norm of {sample.total:.3g}.",
        names,
        evidence,
    )


def _silent(state: TableState, layers: Layers, config: HealthConfig) -> Finding | None:
    state.silent += 1
    if state.silent != config.dead_samples:
        return None
    return Finding(
        DEAD,
        "error",
        "Every gradient is exactly zero",
        f"For {state.silent} samples no watched layer has had any gradient.",
        (),
        {"dead_layers": len(layers.names), "layers": len(layers.names), "samples": state.silent, "total": 0.0},
    )


def check_missing(
    state: TableState, sample: Sample, layers: Layers, config: HealthConfig, open_: bool
) -> Finding | None:
    """`grad is None` for several samples. `open_`: as in `check_dead`."""
    absent = state.absent
    if sample.present is None and not absent.live:
        if np.count_nonzero(absent.ever) < len(absent.ever):
            absent.ever[:] = True
        return None
    inside = np.zeros(len(layers.names), dtype=np.bool_) if sample.present is None else ~sample.present
    absent.update(inside, ~inside)
    slots = _newly(absent, config.missing_samples, config.never_present_samples) if open_ else None
    if slots is None:
        return None
    names = tuple(layers.names[slot] for slot in slots)
    before = int(absent.ever[slots].sum())
    evidence = {
        "layers_without": len(names),
        "layers": len(layers.names),
        "samples": int(absent.now[slots].max()),
        "had_gradient_before": before,
    }
    if before:
        title = f"{len(names)} layers no longer get a gradient: {span(names, 1)}"
        text = f"{span(names)} had gradients before; now `grad` is None: frozen, or no longer part of the loss."
        return Finding(MISSING, "warning", title, text, names, evidence)
    title = f"{len(names)} layers never get a gradient: {span(names, 1)}"
    text = f"`grad` of {span(names)} has been None in every sample: not used in forward, or cut off by `detach`."
    return Finding(MISSING, "info", title, text, names, evidence)


def check_lost(state: TableState, samples_before: int) -> Finding | None:
    """Layers that were measured before the table changed in mid-run: they no longer require a gradient."""
    names, state.lost = state.lost, ()
    if not names:
        return None
    return Finding(
        MISSING,
        "warning",
        f"{len(names)} layers are no longer trained: {span(names, 1)}",
        f"{span(names)} had gradients until {samples_before} samples into the run; now frozen or not watched.",
        names,
        {
            "layers_without": len(names),
            "layers": len(names) + len(state.table.names),
            "had_gradient_before": len(names),
        },
    )


def _newly(runs: Runs, limit: int, limit_never: int) -> np.ndarray | None:
    """The slots to report now, in order; None if there are none.

    A layer that has been through such runs before (an expert without tokens, layer drop) must exceed three of them.
    """
    if not runs.live:
        return None
    limits = np.where(runs.ever, np.maximum(limit, 3 * runs.longest), limit_never)
    if not bool(((runs.now >= limits) & ~runs.told).any()):
        return None
    # Those of the same cause that are a sample or two behind belong to the same alert.
    named = (runs.now >= limits - 2) & (runs.now > 0) & ~runs.told
    runs.told |= named
    return np.flatnonzero(named)
