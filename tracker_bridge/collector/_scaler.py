"""Being told before and after `GradScaler.step`, and what the gradients are multiplied by in between.

An unfused optimizer is never called on overflow, so its own hooks cannot see a skipped step. The scaler instance is
given a subclass of its class while it is watched; pickles and copies of it are of its own class.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

_WATCHERS = "_tracker_bridge_watchers"


class ScalerWatcher(Protocol):
    """Told about every `step` of a scaler. It must not raise."""

    def before_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """The gradients are complete; nothing was decided or unscaled by this `step` yet."""

    def after_scaler_step(self, optimizer: Optimizer) -> None:
        """The optimizer has stepped, or the step was skipped."""


def watch_scaler(scaler: Any, watcher: ScalerWatcher) -> Callable[[], None]:
    """Tell `watcher` about each step of `scaler` until the returned function is called.

    Raises:
        TypeError: `scaler` has no `step` and `is_enabled`, so it is no gradient scaler.
    """
    if not callable(getattr(scaler, "step", None)) or not callable(getattr(scaler, "is_enabled", None)):
        raise TypeError(f"scaler: expected a torch.amp.GradScaler, got {type(scaler).__name__}")
    watchers: list[ScalerWatcher] | None = type(scaler).__dict__.get(_WATCHERS)
    if watchers is None:
        watchers = []
        scaler.__class__ = _watched(type(scaler), watchers)
    watchers.append(watcher)

    def stop() -> None:
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers and _WATCHERS in type(scaler).__dict__:
            scaler.__class__ = type(scaler).__mro__[1]

    return stop


def scale_of(scaler: Any, optimizer: Optimizer) -> Tensor | None:
    """What the gradients of `optimizer` are multiplied by right now, on its device; None: nothing (any more).

    `get_scale()` would wait for the device.
    """
    if scaler is None or not scaler.is_enabled():
        return None
    scale: Tensor | None = scaler._scale
    states = scaler._per_optimizer_states
    if id(optimizer) in states and getattr(states[id(optimizer)]["stage"], "name", "READY") != "READY":
        return None
    return scale


def _watched(base: type, watchers: list[ScalerWatcher]) -> type:
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self.is_enabled():
            return base.step(self, optimizer, *args, **kwargs)  # type: ignore[attr-defined]
        for watcher in watchers:
            watcher.before_scaler_step(self, optimizer)
        result = base.step(self, optimizer, *args, **kwargs)  # type: ignore[attr-defined]
        for watcher in watchers:
            watcher.after_scaler_step(optimizer)
        return result

    def reduce_ex(self: Any, protocol: Any) -> Any:
        # What is rebuilt is of the class that was watched, in the form that pickle checks no class of.
        reduced = super(type(self), self).__reduce_ex__(protocol)
        state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
        return copyreg._reconstructor, (base, object, None), state  # type: ignore[attr-defined]

    names = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__slots__": (),
        "step": step,
        "__reduce_ex__": reduce_ex,
        _WATCHERS: watchers,
    }
    return type(base.__name__, (base,), names)
