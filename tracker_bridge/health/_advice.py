"""Where to look first, chosen by the evidence of a finding and by what changed before it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracker_bridge.health._layers import number, span
from tracker_bridge.health._signals import Change
from tracker_bridge.health._state import Finding

_MOST = 4


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What was known when the finding was made. `growth`: the total's last finite value over its median before."""

    changes: Sequence[Change]
    learning_rate: float | None
    clipped: bool
    max_norm: float | None
    growth: float
    skipping: bool
    samples: int
    has_loss: bool


def advise(finding: Finding, now: Circumstances) -> tuple[str, ...]:
    """At most four places to check, likeliest first."""
    seen: dict[str, None] = {}
    for line in (*_changes(finding, now), *_by_rule(finding, now)):
        seen.setdefault(line)
    return tuple(seen)[:_MOST]


def _changes(finding: Finding, now: Circumstances) -> Iterator[str]:
    if finding.rule in ("clip_saturation", "overflow_storm"):
        return
    for change in now.changes[:2]:
        where = "" if change.step is None else f" at step {change.step}"
        if change.kind == "learning_rate":
            yield f"Just before{where}, {change.text}: undo that first."
        elif change.kind == "warm_up_end":
            yield f"Just before{where}, {change.text}: lower the peak or lengthen the warm-up."
        elif change.kind == "clipping":
            yield f"Just before{where}, {change.text}: clip again."
        elif change.kind in ("resumed", "layers", "params"):
            yield f"Just before{where}, {change.text}: compare with the state before."


def _by_rule(finding: Finding, now: Circumstances) -> Iterator[str]:
    rule = finding.rule
    if rule == "non_finite":
        yield from _non_finite(finding, now)
    elif rule == "overflow_storm":
        yield "Train in bfloat16, which needs no loss scale, or keep the overflowing layer in float32."
        if finding.layers:
            yield f"Look at the activations of {finding.layers[0]}: float16 ends at 65504."
        yield "Lower the learning rate if the norms grew before the first skip."
    elif rule == "spike":
        above = finding.evidence.get("layers_above", 0)
        if 0 < above * 5 <= finding.evidence.get("layers", 0):
            yield f"Only {span(finding.layers, 2)} is concerned: look at its backward, its inputs and its hooks."
        yield "Look at the batch of this step: unusual length, labels, scale or repeated tokens."
        yield from _clip(now)
        if now.samples < 500:
            yield "Lengthen the warm-up: early spikes mean steps too large for the optimizer's young statistics."
    elif rule in ("explosion", "diverged"):
        yield from _rate(now, "Lower the learning rate")
        yield from _clip(now)
        yield "Check the initialisation (He for ReLU, Xavier for tanh) and that layers are normalised."
        if now.samples < 500:
            yield "Warm the learning rate up over the first steps."
    elif rule == "vanishing":
        yield from _vanishing(finding, now)
    elif rule == "dead_layer":
        yield from _dead(finding, now)
    elif rule == "no_gradient":
        yield "Is `requires_grad` False there, or the layer skipped in forward, or its output detached?"
        yield "Does the optimizer still hold these parameters? (`optimizer.param_groups`)"
    elif rule == "clip_saturation":
        limit = "the limit" if now.max_norm is None else f"the limit of {number(now.max_norm)}"
        yield f"Raise {limit} towards the usual norm, or lower the learning rate instead."
    elif rule == "clipping_stopped":
        yield "Is `clip_grad_norm_` still called before every `optimizer.step()`?"
    elif rule == "no_learning":
        yield from _stuck(finding, now)


def _non_finite(finding: Finding, now: Circumstances) -> Iterator[str]:
    if now.growth > 10:
        yield f"The norm had grown {number(now.growth)} times before: an explosion. Lower the learning rate, clip."
    kind = finding.evidence.get("origin")
    if kind == "loss":
        yield "Look at the batch of this step and at the loss: log or division of 0, an empty mask, a bad label."
        yield "If the loss was finite in this step, its derivative was not: sqrt or norm at 0."
    elif kind == "layer":
        layer = finding.layers[0].rpartition(".")[0] or finding.layers[0]
        yield f"Look at what follows {layer} in forward: sqrt, norm or division at 0, a softmax with all masked, exp."
        yield "Run the step again under torch.autograd.detect_anomaly(): it names the operation."
    else:
        yield "Watch all layers (drop `include`/`exclude`) to see where it comes from."
    if now.skipping:
        yield "Steps were skipped before for overflow: use bfloat16."


def _vanishing(finding: Finding, now: Circumstances) -> Iterator[str]:
    kind = finding.evidence.get("kind")
    if kind == "collapse":
        layer = finding.layers[0].rpartition(".")[0] or finding.layers[0]
        yield f"Look at the activations after {layer}: saturated sigmoid or tanh, or weights that grew."
        yield from _rate(now, "Lower the learning rate")
        yield "Normalise (LayerNorm, BatchNorm) before the saturating activation."
        return
    if kind == "withered":
        yield from _rate(now, "Lower the learning rate, tenfold: the first steps drove units into their flat part")
        yield "Warm the learning rate up over the first steps."
        if not now.clipped:
            yield from _clip(now)
        return
    if not finding.evidence.get("from_start", True):
        yield from _rate(now, "It was not so at the start. Lower the learning rate: weights grew until units saturated")
    per_layer = finding.evidence.get("ratio_per_layer", 1.0)
    if kind == "depth" and per_layer < 0.3:
        yield (f"A factor of {number(per_layer)} a layer is typical of sigmoids (at most 0.25): use ReLU or GELU.")
    else:
        yield "Initialise for the activation: kaiming_normal_ for ReLU and GELU, xavier_uniform_ for tanh."
    yield "Add residual connections, or normalise between layers."
    if kind == "level":
        yield "Is the loss scaled down, or averaged over many masked elements?"


def _dead(finding: Finding, now: Circumstances) -> Iterator[str]:
    if finding.evidence.get("alive_before"):
        yield "Layers before it still get gradient: is its branch multiplied by zero, masked, or a hook at work?"
    if finding.evidence.get("had_gradient_before"):
        yield from _rate(
            now, "Lower the learning rate: a step too large pushes ReLUs or softmaxes into their flat part"
        )
        yield (
            f"Look at the activations after {finding.layers[0].rpartition('.')[0] or finding.layers[0]}: all zero, or "
            "constant?"
            if finding.layers
            else ("Look at the network's output: is it constant?")
        )
        yield "Use GELU or LeakyReLU, normalise, clip."
    else:
        yield "Is the layer multiplied by zero, masked, or a router's expert without tokens?"
        yield "Is a scale or the other factor of a product initialised to zero?"


def _stuck(finding: Finding, now: Circumstances) -> Iterator[str]:
    if finding.layers:
        yield from _rate(now, "Lower the learning rate, tenfold: the network settled on a constant output")
        yield "Warm the learning rate up over the first steps."
    else:
        yield from _rate(now, "Change the learning rate, tenfold down first")
    yield "Do inputs and labels belong together? Overfit one batch to see."
    if finding.evidence.get("mostly_clipped"):
        yield "Clipping holds every step back: raise the limit."


def _rate(now: Circumstances, text: str) -> Iterator[str]:
    yield f"{text}." if now.learning_rate is None else f"{text} (it is {number(now.learning_rate)})."


def _clip(now: Circumstances) -> Iterator[str]:
    if now.clipped and now.max_norm is not None:
        yield f"Clipping at {number(now.max_norm)} is active; lower it if the loss follows the spikes."
    elif not now.clipped:
        yield "Clip gradients: clip_grad_norm_ near the usual norm."
