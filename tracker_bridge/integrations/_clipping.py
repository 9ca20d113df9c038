"""Norms from before `Accelerator.clip_grad_norm_`, which is what both `Trainer` and Accelerate's scripts clip with.

While a collector is watched here, the method is wrapped on its class; when the last one has gone, the class has the
very same function again. Result and gradients are bitwise those of the method itself. It records nothing by itself.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tracker_bridge.collector import GradientNormCollector

_SHARDING = ("FSDP", "DEEPSPEED", "XLA", "MEGATRON_LM", "TP")
# Where Accelerate clips in a way of its own; the norms are then recovered from its result.

_METHOD = "clip_grad_norm_"
_lock = threading.Lock()
_watched: list[tuple[frozenset[int], GradientNormCollector]] = []
_original: Any = None


def watch_clipping(model: torch.nn.Module, collector: GradientNormCollector) -> Callable[[], None]:
    """Measure at each clipping of `model`'s parameters, until the returned function is called."""
    entry = frozenset(id(parameter) for parameter in model.parameters()), collector
    with _lock:
        if not _watched:
            _wrap()
        _watched.append(entry)

    def stop() -> None:
        with _lock:
            if entry in _watched:
                _watched.remove(entry)
                if not _watched:
                    _unwrap()

    return stop


def _wrap() -> None:
    global _original
    from accelerate import Accelerator

    original = _original = vars(Accelerator)[_METHOD]

    @functools.wraps(original)
    def clip_grad_norm_(self: Any, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        # torch takes a single tensor, too.
        several = [parameters] if hasattr(parameters, "grad") else list(parameters)
        collector = _collector_of(several)
        if collector is None or not _is_plain(self, several):
            total = original(self, several, max_norm, norm_type)
            if collector is not None and total is not None:
                collector.note_clip(total, float(max_norm))
            return total
        self.unscale_gradients()
        return collector.clip_grad_norm_(max_norm, norm_type, parameters=several)

    setattr(Accelerator, _METHOD, clip_grad_norm_)


def _unwrap() -> None:
    from accelerate import Accelerator

    setattr(Accelerator, _METHOD, _original)


def _collector_of(parameters: list[Any]) -> GradientNormCollector | None:
    if not parameters:
        return None
    first = id(parameters[0])
    return next((collector for ids, collector in _watched if first in ids), None)


def _is_plain(accelerator: Any, parameters: list[Any]) -> bool:
    """Whether Accelerate would call torch's function on these parameters and do nothing else."""
    if getattr(accelerator.distributed_type, "name", "") in _SHARDING:
        return False
    return not any(hasattr(parameter, "device_mesh") for parameter in parameters)
