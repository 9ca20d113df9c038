"""What the loss says: diverged, or stuck. Reads the loss, and the norms only to tell why it is stuck."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.health._layers import number, span
from tracker_bridge.health._signals import FIRST, Loss
from tracker_bridge.health._state import Finding

DIVERGED = "diverged"
STUCK = "no_learning"


def spread(values: list[float]) -> float:
    """Robust standard deviation (1.4826 MAD)."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median([abs(value - middle) for value in values])


def check_diverged(loss: Loss, config: HealthConfig) -> Finding | None:
    """The loss stays far above where it began, or jumped from what was learned back to where it began."""
    length = config.diverged_samples
    if loss.count < length + 2:
        return None
    last = loss.recent[-length:]
    low = min(last)
    early = loss.count <= len(loss.first)
    if early:
        loss.at_once = loss.at_once or _at_once(loss.first, config)
    start = loss.start
    above_start = loss.at_once if early else start > 0 and low > config.diverged_ratio * start
    lost = False
    if not above_start and not loss.diverged and low <= loss.recent[-length - 1]:
        return None  # nearly every value ends here
    past = loss.recent[:-length]
    if not above_start and len(past) >= 32 and low > max(past[-32:]):
        level, noise = statistics.median(past), spread(past)
        lost = (
            start > 0
            and level > 0
            and low > max(1.5 * level, level + 8 * noise)
            and statistics.median(last) > 0.9 * start
        )
    if not above_start and not lost:
        loss.diverged = loss.diverged and start > 0 and statistics.median(loss.recent) > 1.5 * start
        return None
    if loss.diverged:
        return None
    loss.diverged = True
    middle = statistics.median(last)
    evidence = {"loss": middle, "loss_at_start": start}
    if lost:
        evidence["loss_before"] = statistics.median(past)
        title = f"The loss jumped from {number(evidence['loss_before'])} to {number(middle)} and stays there"
        text = f"That is where the run began ({number(start)}): what it had learned is lost."
        return Finding(DIVERGED, "error", title, text, (), evidence)
    title = f"Training diverged: the loss is {number(middle)} and began at {number(start)}"
    return Finding(DIVERGED, "error", title, f"It has been above {number(low)} for {length} values.", (), evidence)


def _at_once(values: list[float], config: HealthConfig) -> bool:
    """Whether the first value is far below all that followed, also compared with how much those vary."""
    first, rest = values[0], values[1:]
    needed = 2 * config.diverged_ratio if len(values) >= FIRST else config.diverged_at_once
    if first <= 0 or min(rest) <= needed * first:
        return False
    logs = [math.log(value) for value in rest]
    return statistics.median(logs) - math.log(first) > config.diverged_sigmas * spread(logs)


@dataclass(frozen=True, slots=True)
class NormChange:
    """Norms of the last samples over those of the first: the median layer's, the total's, and who fell most."""

    middle: float
    total_before: float
    total_now: float
    fallen: tuple[str, ...]
    mostly_clipped: bool


def check_stuck(loss: Loss, config: HealthConfig, norms: NormChange | None, *, ended: bool) -> Finding | None:
    """The loss has not fallen since the start.

    While gradients are as they were, that takes `stuck_samples` values to say; where they have withered although the
    loss has not moved (a constant output is all that is left), `stuck_at_end` values at the run's end.
    """
    if loss.stuck or loss.diverged or loss.count < (config.stuck_at_end if ended else config.stuck_samples):
        return None
    start, now = loss.start, statistics.median(loss.recent)
    if loss.first[0] < 0.7 * start:
        start = loss.first[0]  # it blew up within its first values; that is not where it began
    gain = start - now
    if gain >= config.stuck_gain * abs(start):
        return None
    withered = norms is not None and norms.middle < config.withered_ratio
    noise = spread(loss.recent)
    error = 1.2533 * noise / len(loss.recent) ** 0.5  # standard error of a median
    flat = loss.count >= config.stuck_samples and gain < max(3 * error, 0.01 * abs(start))
    if not withered and not flat:
        return None
    loss.stuck = True
    evidence: dict[str, object] = {"loss": now, "loss_at_start": start, "noise": noise, "values": loss.count}
    text = f"After {loss.count} values it is {number(now)} and began at {number(start)}."
    layers: tuple[str, ...] = ()
    if norms is not None:
        evidence |= {
            "norm_at_start": norms.total_before,
            "norm": norms.total_now,
            "layer_norm_ratio": norms.middle,
            "mostly_clipped": norms.mostly_clipped,
        }
        text += f" The norm of the median layer is {number(norms.middle)} times what it was at the start"
        text += f"; fallen most: {span(norms.fallen)}." if withered else "."
        layers = norms.fallen if withered else ()
    title = "The loss has not fallen since the start: nothing is learned"
    return Finding(STUCK, "warning", title, text, layers, evidence)
