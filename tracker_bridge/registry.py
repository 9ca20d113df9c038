"""From the name of an adapter's kind to its class, through the entry-point group `tracker_bridge.adapters`.

Listing the kinds reads package metadata and imports nothing; asking for a class imports that one adapter, which
imports no SDK before it is opened.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any

import msgspec

from tracker_bridge.adapter import Adapter, Requirement
from tracker_bridge.errors import AdapterLoadError, did_you_mean

__all__ = [
    "ENTRY_POINT_GROUP",
    "adapter_class",
    "adapter_kinds",
    "known_kinds",
    "make_adapter",
    "missing_requirements",
    "register",
    "unknown_kind",
    "unregister",
]

ENTRY_POINT_GROUP = "tracker_bridge.adapters"

_registered: dict[str, type[Adapter[Any]]] = {}


@functools.cache
def adapter_kinds() -> Mapping[str, EntryPoint]:
    """The installed adapters by kind, in alphabetical order; imports none of them. Read once per process."""
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return MappingProxyType({point.name: point for point in sorted(points, key=lambda point: point.name)})


def known_kinds() -> tuple[str, ...]:
    """Every kind that `adapter_class` knows: installed and registered ones, in alphabetical order."""
    return tuple(sorted({*adapter_kinds(), *_registered}))


def register(kind: str, cls: type[Adapter[Any]]) -> None:
    """Make `cls` the adapter of `kind` in this process, above an installed one of that name.

    A delivery process of its own does not see it: use thread delivery, or an entry point.
    """
    _registered[kind] = cls


def unregister(kind: str) -> None:
    """Undo `register`; harmless if there was none."""
    _registered.pop(kind, None)


def adapter_class(kind: str) -> type[Adapter[Any]]:
    """The class of `kind`. Raises `AdapterLoadError` naming the nearest kind, or why its entry point fails."""
    registered = _registered.get(kind)
    if registered is not None:
        return registered
    point = adapter_kinds().get(kind)
    if point is None:
        raise AdapterLoadError(unknown_kind(kind))
    return _load(point)


def unknown_kind(kind: str) -> str:
    """The sentence for a kind that no adapter has: the nearest one, and all that there are."""
    hint = did_you_mean(kind.casefold(), known_kinds()) or "."
    return f"unknown adapter {kind!r}{hint} Installed adapters: {', '.join(known_kinds())}"


@functools.cache
def _load(point: EntryPoint) -> type[Adapter[Any]]:
    source = f"{point.value!r}" if point.dist is None else f"{point.value!r} of {point.dist.name} {point.dist.version}"
    try:
        cls = point.load()
    except Exception as error:
        raise AdapterLoadError(
            f"the adapter {point.name!r} ({source}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Adapter)):
        raise AdapterLoadError(
            f"the adapter {point.name!r} ({source}) is not a subclass of tracker_bridge.adapter.Adapter"
        )
    return cls


def make_adapter(kind: str, options: Mapping[str, Any]) -> Adapter[Any]:
    """The adapter of `kind` with `options` (as in `BackendConfig.options`); does no I/O and imports no SDK."""
    cls = adapter_class(kind)
    return cls(msgspec.convert(dict(options), type=cls.options_type))


def missing_requirements(cls: type[Adapter[Any]]) -> tuple[Requirement, ...]:
    """Those of the adapter's requirements that are not installed here; imports none of them."""
    return tuple(requirement for requirement in cls.requires if not _importable(requirement.module))


def _importable(module: str) -> bool:
    # Looking for a dotted name would import its parents, so only the top-level package is looked for.
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    # A plain folder in the working directory (wandb leaves one named `wandb`) is found as a namespace package.
    return spec is not None and spec.loader is not None and spec.origin is not None
