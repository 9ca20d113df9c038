"""What `Run.watch` was given, looked at before anything is measured: misuse raises, what measures nothing is told once.

It reads names, shapes and addresses only, never a value, and imports no torch itself.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracker_bridge.config import unknown
from tracker_bridge.run._ranks import current_rank

if TYPE_CHECKING:
    import torch

_OWN = ("histograms", "name", "scaler")
_NOT_FOR_SCRIPTS = ("self", "model", "sink")
_SWITCHES = ("histograms", "parameter_norms", "update_ratio", "zero_fraction")
_TO_USER = 4
# Frames from `warnings.warn` to the script's call of `Run.watch`.


def check_options(options: Mapping[str, Any], collector: type[Any]) -> None:
    """Raise `TypeError` for an option that does not exist, with the nearest one, or that has a wrong type."""
    valid = sorted({*inspect.signature(collector.__init__).parameters, *_OWN} - set(_NOT_FOR_SCRIPTS))
    for name in options:
        if name not in valid:
            raise TypeError(unknown(f"watch: unknown option {name!r}", name, valid, "Options"))
    for name in _SWITCHES:
        if not isinstance(options.get(name, False), bool):
            raise _wrong(name, "True or False", options[name])
    if not isinstance(options.get("name"), (str, type(None))):
        raise _wrong("name", "text", options["name"])
    on_fault = options.get("on_fault")
    if on_fault is not None and not callable(on_fault):
        raise _wrong("on_fault", "a callable", on_fault)
    if not _are_patterns(options.get("activations", ())):
        expected = "globs on module paths, 're:...', module classes or callables"
        raise _wrong("activations", expected, options["activations"])
    if not isinstance(options.get("parts", ()), Iterable):
        raise _wrong("parts", "a name or names of parts of a transformer", options["parts"])


def warn_of_nothing_to_measure(model: torch.nn.Module) -> None:
    """Warn if no parameter of `model` can have a gradient."""
    name = type(model).__name__
    parameters = list(model.parameters())
    if not parameters:
        warnings.warn(
            f"watch: {name} has no parameters, so there is no gradient to measure; watch the model that is trained",
            stacklevel=_TO_USER,
        )
    elif not any(parameter.requires_grad for parameter in parameters):
        warnings.warn(
            f"watch: no parameter of {name} requires a gradient, so there is nothing to measure; call "
            "requires_grad_(True) on what is trained, or watch the model that is trained",
            stacklevel=_TO_USER,
        )


def warn_of_another_model(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Hint at optimizers that seem to have nothing to do with `model`; the collector measures all the same.

    Copies are legitimate: float32 masters differ in dtype or device, flat buffers in shape, and views share memory.
    """
    held = [tensor for optimizer in optimizers for group in optimizer.param_groups for tensor in group["params"]]
    own = list(model.parameters())
    if not held or not own or {id(tensor) for tensor in held} & {id(tensor) for tensor in own}:
        return
    if _are_masters(held, own) or _are_buffers(held, own) or _memory(held) & _memory(own):
        return
    kinds = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in optimizers))
    name = type(model).__name__
    warnings.warn(
        f"watch: {kinds} holds none of the parameters of {name}; was {name} made or wrapped after it? Give the "
        "optimizer that trains the model (if it holds copies of the parameters, nothing is wrong)",
        stacklevel=_TO_USER,
    )


def _are_patterns(value: Any) -> bool:
    return isinstance(value, (str, type, Iterable)) or callable(value)


def _wrong(name: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{name}: expected {expected}, got {type(value).__name__}")


def _are_masters(held: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> bool:
    """Whether some of `held` are of the model's shapes, in a dtype or on a device of their own."""
    shapes = Counter(tuple(tensor.shape) for tensor in own)
    kinds = {(tensor.dtype, tensor.device) for tensor in own}
    return any(tuple(tensor.shape) in shapes and (tensor.dtype, tensor.device) not in kinds for tensor in held)


def _are_buffers(held: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> bool:
    """Whether `held` are one-dimensional and large enough for the model, or for this process' share of it."""
    if any(tensor.ndim != 1 for tensor in held):
        return False
    trained = sum(tensor.numel() for tensor in own if tensor.requires_grad)
    return current_rank() is not None or sum(tensor.numel() for tensor in held) >= trained


def _memory(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Addresses of the memory behind them; those that have none (meta, sharded) are left out."""
    addresses = set()
    for tensor in tensors:
        try:
            addresses.add(tensor.untyped_storage().data_ptr())
        except (AttributeError, NotImplementedError, RuntimeError):
            continue
    return addresses - {0}
