"""The parameters of a model under clean names: wrappers removed only where the wrapper really is one.

Reads the module tree and nothing else; it holds no parameter and knows neither gradients nor optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

# (package, class) of a wrapper -> the attributes that hold what it wraps. Compared by name along the MRO, so that
# nothing is imported to find out that a model is not wrapped by it.
_WRAPPERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("torch._dynamo", "OptimizedModule"): ("_orig_mod",),
    ("torch.nn.parallel", "DistributedDataParallel"): ("module",),
    ("torch.nn.parallel", "DataParallel"): ("module",),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"): ("_fsdp_wrapped_module",),
    ("torch.distributed.algorithms", "CheckpointWrapper"): ("_checkpoint_wrapped_module",),
    ("torch.distributed.algorithms", "OffloadWrapper"): ("_checkpoint_wrapped_module",),
    ("torch.distributed.algorithms", "ActivationWrapper"): ("_checkpoint_wrapped_module",),
    ("deepspeed", "DeepSpeedEngine"): ("module",),
    ("lightning", "_FabricModule"): ("_forward_module", "_original_module"),
    ("lightning_fabric", "_FabricModule"): ("_forward_module", "_original_module"),
}

_MAX_DEPTH = 500
_FSDP1 = ("torch.distributed.fsdp", "FullyShardedDataParallel")


@dataclass(frozen=True, slots=True)
class Place:
    """One module on the way from the root to a parameter: its clean path and its class."""

    path: str
    kind: type[nn.Module]


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """One parameter, once. `index` is its position in `flat_parameters` of the same model.

    `aliases` are further names that select it: those of tied weights, of the tensor that a parametrization
    computes (`layer.weight` for `layer.parametrizations.weight.original0`) and, for PEFT models, the name without
    `base_model.model.`. `places` leads from the root to the module that owns it.
    """

    name: str
    aliases: tuple[str, ...]
    index: int
    places: tuple[Place, ...]
    parameter: nn.Parameter


def flat_parameters(model: nn.Module) -> list[nn.Parameter | None]:
    """Every entry of every module's parameters, level by level, unset ones (`bias=None`) as None.

    This is the whole cost of noticing that a model has changed, so it is written for speed: a module that is in two
    places may come twice, and the order is not that of registration.

    Raises:
        ValueError: the modules contain one another in a circle.
    """
    found: list[nn.Parameter | None] = []
    level: list[nn.Module] = [model]
    for _ in range(_MAX_DEPTH):
        for module in level:
            if module._parameters:
                found.extend(module._parameters.values())
        below = [child for module in level if module._modules for child in module._modules.values()]
        if not below:
            return found
        level = [child for child in dict.fromkeys(below) if child is not None]
    raise ValueError(f"model: its modules are nested more than {_MAX_DEPTH} deep, or in a circle")


def named_parameters(model: nn.Module) -> list[NamedParameter]:
    """Every distinct parameter of `model` in registration order, under its clean name."""
    flat = flat_parameters(model)
    indexes = {id(flat[index]): index for index in reversed(range(len(flat)))}
    order: list[nn.Parameter] = []
    names: dict[int, list[str]] = {}
    places_of: dict[int, tuple[Place, ...]] = {}
    for module, path, places in _visits(model, (), "", frozenset()):
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in names:
                order.append(parameter)
                names[id(parameter)] = []
                places_of[id(parameter)] = places
            names[id(parameter)].append(_join(path, key))
    return [
        NamedParameter(
            name=names[id(parameter)][0],
            aliases=_aliases(names[id(parameter)]),
            index=indexes[id(parameter)],
            places=places_of[id(parameter)],
            parameter=parameter,
        )
        for parameter in order
    ]


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every distinct module under its clean path; a wrapper is left out, what it wraps is there."""
    seen: set[int] = set()
    for module, path, _ in _visits(model, (), "", frozenset()):
        if id(module) not in seen and wrapped_attributes(module) == ():
            seen.add(id(module))
            yield path, module


def outermost_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every distinct clean path with its outermost module, the wrapper where there is one.

    Modules inside a compiled one are left out.
    """
    seen: set[str] = set()
    modules: set[int] = set()
    compiled: list[str] = []
    for module, path, _ in _visits(model, (), "", frozenset()):
        if any(not outer or path == outer or path.startswith(outer + ".") for outer in compiled):
            continue
        if path not in seen and id(module) not in modules:
            yield path, module
        seen.add(path)
        modules.add(id(module))
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            compiled.append(path)


def block_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Clean paths of repeated layers, such as `bert.encoder.layer.3`.

    They are the items of a `ModuleList` or `Sequential` that holds at least two items of the same (unwrapped) class
    with parameters. Blocks inside blocks are left out, so a parameter is in at most one.
    """
    found: list[str] = []
    containers = [
        (path, module) for path, module in named_modules(model) if isinstance(module, nn.ModuleList | nn.Sequential)
    ]
    for path, container in containers:
        if any(path == prefix or path.startswith(prefix + ".") for prefix in found):
            continue
        items = {
            key: type(core(item))
            for key, item in container._modules.items()
            if item is not None and next(item.parameters(), None) is not None
        }
        kinds = list(items.values())
        found.extend(_join(path, key) for key, kind in items.items() if kinds.count(kind) >= 2)
    return tuple(found)


def wrapped_attributes(module: nn.Module) -> tuple[str, ...]:
    """The attributes of `module` that hold what it wraps; () if it is no wrapper."""
    for base in type(module).__mro__:
        for (package, name), attributes in _WRAPPERS.items():
            if base.__name__ == name and (base.__module__ == package or base.__module__.startswith(package + ".")):
                return attributes
    return ()


def has_fsdp1(model: nn.Module) -> bool:
    """Whether some module is wrapped by the flat-parameter FSDP, whose gradients are slices of no fixed parameter."""
    package, name = _FSDP1
    return any(
        base.__name__ == name and base.__module__.startswith(package)
        for module in model.modules()
        for base in type(module).__mro__
    )


def _visits(
    module: nn.Module, places: tuple[Place, ...], path: str, active: frozenset[int]
) -> Iterator[tuple[nn.Module, str, tuple[Place, ...]]]:
    """Every way to every module, parents first; a module that contains itself is entered once per way."""
    inner = (*places, Place(path, type(module)))
    yield module, path, inner
    hidden = wrapped_attributes(module)
    active = active | {id(module)}
    for key, child in module._modules.items():
        if child is not None and id(child) not in active:
            yield from _visits(child, inner, path if key in hidden else _join(path, key), active)


def _aliases(names: list[str]) -> tuple[str, ...]:
    found: list[str] = list(names[1:])
    for name in names:
        parts = name.split(".")
        if "parametrizations" in parts[:-2]:
            at = parts.index("parametrizations")
            found.append(".".join([*parts[:at], parts[at + 1]]))
        if name.startswith("base_model.model."):
            found.append(name.removeprefix("base_model.model."))
    return tuple(dict.fromkeys(alias for alias in found if alias != names[0]))


def core(module: nn.Module) -> nn.Module:
    """What `module` wraps, or itself."""
    while hidden := wrapped_attributes(module):
        inner = module._modules.get(hidden[0])
        if inner is None:
            break
        module = inner
    return module


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def full_numel(parameter: torch.Tensor) -> int:
    """Elements of the whole tensor, also where this process holds only a shard of it (a DTensor's size is global)."""
    return parameter.numel()
