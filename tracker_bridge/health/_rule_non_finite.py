"""NaN and infinities: where they were made. Reads one sample; remembers only whether the last one was infected."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracker_bridge.health._layers import span
from tracker_bridge.health._state import Finding, Layers, Sample, TableState

RULE = "non_finite"


def infection(sample: Sample) -> npt.NDArray[np.intp] | None:
    """The slots that are NaN or infinite; None if nothing is. Empty: only the total is (an unwatched layer)."""
    if sample.finite:
        return None
    bad = ~np.isfinite(sample.values)
    if sample.present is not None:
        bad &= sample.present
    slots = np.flatnonzero(bad)
    return slots if len(slots) or not np.isfinite(sample.total) else None


def origin(slots: npt.NDArray[np.intp], sample: Sample, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(kind, layers): `loss`, `layer` or `unwatched`, and the layers nearest to the origin first.

    Backward runs from the loss to the input and hands a non-finite value to everything before it. So the last
    non-finite layer in forward order is where it was made; if no layer after it is finite, the loss or forward made it.
    """
    if not len(slots):
        return "unwatched", ()
    here = np.ones(len(names), dtype=np.bool_) if sample.present is None else sample.present
    if len(slots) == int(here.sum()) and len(slots) > 1:
        return "loss", ()
    return "layer", tuple(names[slot] for slot in slots[::-1])


def check(state: TableState, sample: Sample, layers: Layers) -> Finding | None:
    """A finding for the first infected sample of an episode."""
    slots = infection(sample)
    if slots is None:
        state.infected = False
        return None
    if state.infected:
        return None
    state.infected = True
    kind, culprits = origin(slots, sample, layers.names)
    here = len(layers.names) if sample.present is None else int(sample.present.sum())
    evidence = {
        "origin": kind,
        "non_finite_layers": len(slots),
        "layers": here,
        "nan": int(np.isnan(sample.values[slots]).sum()),
        "inf": int(np.isinf(sample.values[slots]).sum()),
    }
    if kind == "loss":
        title = "Every gradient is non-finite: the loss or the forward pass made it"
        text = (
            f"All {here} watched layers are NaN or infinite, so the loss was already non-finite or its derivative is."
        )
        return Finding(RULE, "error", title, text, (), evidence)
    if kind == "unwatched":
        title = "The total gradient norm is non-finite, from a layer that is not watched"
        return Finding(RULE, "error", title, "Every watched layer is finite.", (), evidence)
    after = int(slots[-1]) + 1
    following = _next_present(after, sample)
    evidence["last_non_finite"] = culprits[0]
    text = f"{len(slots)} of {here} layers are NaN or infinite: {span(culprits)}."
    if following is not None:
        evidence["first_finite_after"] = layers.names[following]
        text += f" {layers.names[following]}, the next layer, is finite: it was made between the two."
    else:
        text += " The last watched layer is among them; others before it are finite."
    return Finding(RULE, "error", f"Non-finite gradient, made at {culprits[0]}", text, culprits, evidence)


def _next_present(slot: int, sample: Sample) -> int | None:
    count = len(sample.values)
    while slot < count:
        if sample.present is None or sample.present[slot]:
            return slot
        slot += 1
    return None
