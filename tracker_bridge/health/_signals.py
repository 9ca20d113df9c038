"""The logged loss and learning rate, and what changed lately. Bounded: the first values, the last 64, 16 changes."""

from __future__ import annotations

import math
import re
import statistics
from typing import Any, Union

import msgspec

from tracker_bridge.health._config import HealthConfig
from tracker_bridge.records import Step

FIRST = 20
_RECENT = 64
_NOW = 8
_MOST_CHANGES = 16
_HELD_OUT = re.compile(r"(^|[/_.\-])(val|valid|validation|eval|test|dev|ema|best)([/_.\-]|$)", re.IGNORECASE)
_LOSS = re.compile(r"(^|[/_.\-])loss([/_.\-](train|training|step|total))?$", re.IGNORECASE)
_RATE = re.compile(r"(^|[/_.\-])(lr|learning_rate)([/_.\-].*)?$", re.IGNORECASE)
_JUMP = 2.0
_WARM_UP_RISES = 5


class Change(msgspec.Struct, frozen=True):
    """Something that changed: `kind` is `learning_rate`, `warm_up_end`, `clipping`, `resumed`, `layers` or `params`."""

    clock: int
    step: Union[Step, None]
    kind: str
    text: str


class Loss(msgspec.Struct):
    """The first and the last values of the loss, and which of its troubles were told."""

    first: list[float] = msgspec.field(default_factory=list)
    recent: list[float] = msgspec.field(default_factory=list)
    count: int = 0
    level: float = 0.0
    """Median of the first values."""
    step: Union[Step, None] = None
    diverged: bool = False
    at_once: bool = False
    """Whether it diverged within its first values."""
    stuck: bool = False
    infected: bool = False

    def add(self, value: float) -> None:
        """Append a finite value."""
        if len(self.first) < FIRST:
            self.first.append(value)
            self.level = statistics.median(self.first)
        self.recent.append(value)
        if len(self.recent) > _RECENT:
            del self.recent[0]
        self.count += 1

    @property
    def start(self) -> float:
        """The level at the beginning: a median, or the first value if it diverged right after that."""
        return self.first[0] if self.at_once else self.level

    @property
    def falling(self) -> bool:
        """Whether the loss is lower than at the start, and lower now than a little earlier."""
        if self.count < FIRST:
            return False
        half = len(self.recent) // 2
        late, earlier = statistics.median(self.recent[half:]), statistics.median(self.recent[:half])
        return late < self.start - 0.05 * abs(self.start) and late <= earlier

    @property
    def dropping(self) -> bool:
        """Whether the last eight values are clearly below those before them."""
        past = self.recent[:-_NOW]
        if len(past) < 3 * _NOW:
            return False
        level = statistics.median(past)
        noise = 1.4826 * statistics.median([abs(value - level) for value in past])
        # Two standard errors of a median of eight.
        return statistics.median(self.recent[-_NOW:]) < level - max(0.9 * noise, 0.01 * abs(level))

    @property
    def progressed(self) -> bool:
        """Whether the loss has at least halved since the start, or is falling: small gradients are then no trouble."""
        if not self.recent:
            return False
        return self.falling or (self.count >= FIRST and 0 < 2 * statistics.median(self.recent) < self.start)


class Signals(msgspec.Struct):
    """Loss, learning rate and recent changes of a run."""

    loss: Loss = msgspec.field(default_factory=Loss)
    loss_name: Union[str, None] = None
    rate: Union[float, None] = None
    rate_name: Union[str, None] = None
    rises: int = 0
    changes: list[Change] = msgspec.field(default_factory=list)

    def note(self, clock: int, step: Step | None, kind: str, text: str) -> None:
        """Remember a change."""
        self.changes.append(Change(clock, step, kind, text))
        del self.changes[:-_MOST_CHANGES]

    def lately(self, clock: int, within: int = 64) -> list[Change]:
        """The changes of the last `within` samples, newest first."""
        return [change for change in reversed(self.changes) if change.clock >= clock - within]

    def read_rate(self, value: float, clock: int, step: Step) -> None:
        """A logged learning rate: jumps and the end of a warm-up are changes."""
        if not math.isfinite(value):
            return
        before, self.rate = self.rate, value
        if before is None or value == before:
            if self.rises >= _WARM_UP_RISES:
                self.note(clock, step, "warm_up_end", f"the warm-up ended at a learning rate of {value:.3g}")
            self.rises = 0
            return
        if before > 0 and value > 0 and max(value / before, before / value) >= _JUMP and self.rises < _WARM_UP_RISES:
            self.note(clock, step, "learning_rate", f"the learning rate went from {before:.3g} to {value:.3g}")
        if value > before:
            self.rises += 1
        else:
            if self.rises >= _WARM_UP_RISES:
                self.note(clock, step, "warm_up_end", f"the warm-up ended at a learning rate of {before:.3g}")
            self.rises = 0


def find_loss(values: dict[str, float], config: HealthConfig) -> str | None:
    """The series that is the training loss: the configured one, or the shortest name that says so."""
    if config.loss is not None:
        return config.loss if config.loss in values else None
    found = [name for name in values if _LOSS.search(name) and not _HELD_OUT.search(name)]
    return min(found, key=len, default=None)


def find_learning_rate(values: dict[str, float], config: HealthConfig) -> str | None:
    """The series that is the learning rate, by the same rule."""
    if config.learning_rate is not None:
        return config.learning_rate if config.learning_rate in values else None
    found = [name for name in values if _RATE.search(name)]
    return min(found, key=len, default=None)


def rate_in(params: dict[str, Any], depth: int = 4) -> float | None:
    """A learning rate among hyper-parameters, at any level down to `depth`."""
    for name, value in params.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and _RATE.search(str(name)):
            return float(value)
    if depth:
        for value in params.values():
            if isinstance(value, dict) and (found := rate_in(value, depth - 1)) is not None:
                return found
    return None
