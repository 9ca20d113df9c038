"""One source of configuration as a flat table from key path to value, and several sources laid over each other.

Only shapes are looked at here (which keys exist, what is a mapping); types are checked after the layers are merged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

import msgspec

from tracker_bridge.config._source import plain
from tracker_bridge.config._text import KeyPath, fold, found, key_text, unknown
from tracker_bridge.config._types import BackendConfig, DeliveryConfig, GradientsConfig, QueueConfig, RouteConfig
from tracker_bridge.errors import ConfigError
from tracker_bridge.health import HealthConfig

TEXTS = ("project", "experiment", "name", "run_id")
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "gradients": GradientsConfig,
    "queue": QueueConfig,
    "delivery": DeliveryConfig,
    "health": HealthConfig,
}
KEYS = (*TEXTS, "resume", "ranks", "tags", "params", "backends", *SECTIONS)
BACKEND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BACKENDS_SHAPE = (
    "a list of names, or a mapping from each name to its options (backends: {tensorboard: {log_dir: runs}, wandb: {}})"
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value with its provenance.

    `origin` and `key` are what an error message calls it. `untyped`: the value is text because its source knows
    nothing else. `interpolated`: `${env:...}` in it is replaced.
    """

    value: Any
    origin: str
    key: str | None
    untyped: bool = False
    interpolated: bool = False

    def error(self, problem: str) -> ConfigError:
        """An error about this value."""
        return ConfigError(problem, origin=self.origin, key=self.key)


Tree = dict[str, Union["Tree", Leaf]]  # type: ignore[misc,unused-ignore]


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source says.

    `backends`: the names that it lists (None: no list), `listed_by` what an error calls that list. `present`: the
    sections it opens.
    """

    values: Mapping[KeyPath, Leaf]
    backends: tuple[str, ...] | None = None
    listed_by: str = ""
    present: frozenset[str] = frozenset()


def layer_of(tree: Mapping[str, Any], origin: str, *, interpolated: bool) -> Layer:
    """The layer that a document with the keys of the configuration file makes. Raises `ConfigError`."""
    values: dict[KeyPath, Leaf] = {}
    present: set[str] = set()
    backends: tuple[str, ...] | None = None

    def put(path: KeyPath, value: Any) -> None:
        values[path] = Leaf(value, origin, key_text(path), interpolated=interpolated)

    for key, value in tree.items():
        if key not in KEYS:
            shown = key if isinstance(key, str) else str(key)
            raise ConfigError(unknown(f"unknown key {shown!r}", shown, KEYS, "Valid keys"), origin=origin)
        if value is None:
            continue
        if key == "tags":
            for tag, tag_value in _tags(value, origin):
                put(("tags", tag), tag_value)
        elif key == "params":
            for name, param in _mapping(value, origin, key).items():
                put(("params", name), plain(param))
        elif key == "backends":
            entries = backend_entries(value, origin)
            backends = tuple(entries)
            for name, options in entries.items():
                for option, setting in options.items():
                    if option == "route" and setting is not None:
                        for route_key, route_value in _mapping(setting, origin, f"backends.{name}.route").items():
                            _check_key(route_key, RouteConfig, origin, ("backends", name, "route"))
                            put(("backends", name, "route", route_key), plain(route_value))
                    elif option != "route":
                        put(("backends", name, option), plain(setting))
        elif key in SECTIONS:
            present.add(key)
            for name, setting in _mapping(value, origin, key).items():
                _check_key(name, SECTIONS[key], origin, (key,))
                put((key, name), plain(setting))
        else:
            put((key,), value)
    return Layer(values, backends, origin, frozenset(present))


def overlay(layers: Iterable[Layer]) -> Tree:
    """The layers laid over each other, the lowest first."""
    tree: Tree = {}
    for layer in layers:
        for name in layer.backends or ():
            _forget_other_kind(tree, layer, name)
        for path, leaf in layer.values.items():
            _set(tree, path, leaf)
    return tree


def backend_entries(value: Any, origin: str) -> dict[str, Mapping[str, Any]]:
    """Backend name -> options, from any form in which `backends` may be written."""
    if isinstance(value, str):
        value = [] if value.strip().lower() == "none" else [part.strip() for part in value.split(",") if part.strip()]
    entries: dict[str, Mapping[str, Any]] = {}
    if isinstance(value, Mapping):
        pairs: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        pairs = [_pair(item, origin, index) for index, item in enumerate(value)]
    else:
        raise ConfigError(f"found {found(value)}, expected {_BACKENDS_SHAPE}", origin=origin, key="backends")
    for name, options in pairs:
        _check_backend_name(name, entries, origin)
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(
                f"found {found(options)}, expected a mapping of options or nothing",
                origin=origin,
                key=key_text(("backends", name)),
            )
        entries[name] = dict(options or {})
        for option in entries[name]:
            if not isinstance(option, str):
                raise ConfigError(
                    f"found the key {option!r}, expected text", origin=origin, key=key_text(("backends", name))
                )
    return entries


def _pair(item: Any, origin: str, index: int) -> tuple[Any, Any]:
    if isinstance(item, str):
        return item, None
    if isinstance(item, BackendConfig):
        route = msgspec.structs.asdict(item.route)
        return item.name, {**item.options, "adapter": item.adapter, "route": route}
    if isinstance(item, Mapping) and len(item) == 1:
        return next(iter(item.items()))
    shown = f"a mapping of {len(item)} keys ({listed_keys(item)})" if isinstance(item, Mapping) else found(item)
    raise ConfigError(
        f"found {shown}, expected a name, or a mapping from one name to its options (- wandb: {{mode: offline}})",
        origin=origin,
        key=f"backends[{index}]",
    )


def listed_keys(mapping: Mapping[Any, Any]) -> str:
    """The first keys of a mapping, to recognise it by."""
    keys = [str(key) for key in mapping]
    return ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")


def _check_backend_name(name: Any, entries: Mapping[str, Any], origin: str) -> None:
    if not isinstance(name, str) or not BACKEND_NAME.fullmatch(name):
        raise ConfigError(
            f"found {found(name)} as the name of a backend, expected up to 64 letters, digits, '-', '_' and '.', "
            "a letter or digit first",
            origin=origin,
            key="backends",
        )
    if fold(name) in {fold(key) for key in KEYS}:
        raise ConfigError(
            f"{name!r} cannot name a backend because it is a key of the configuration; choose another name and say "
            "what it is with adapter: <kind>",
            origin=origin,
            key="backends",
        )
    for other in entries:
        if other == name:
            raise ConfigError(
                f"{name!r} is listed twice; give one of them a name of its own and adapter: {name}",
                origin=origin,
                key="backends",
            )
        if fold(other) == fold(name):
            raise ConfigError(
                f"{other!r} and {name!r} cannot be told apart in environment variables; rename one of them",
                origin=origin,
                key="backends",
            )


def _mapping(value: Any, origin: str, key: str) -> Mapping[str, Any]:
    value = plain(value)
    if not isinstance(value, dict):
        raise ConfigError(f"found {found(value)}, expected a mapping", origin=origin, key=key)
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"found the key {name!r}, expected text", origin=origin, key=key)
    return value


def _tags(value: Any, origin: str) -> Iterable[tuple[str, str | None]]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        pairs = [(tag, None) for tag in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    else:
        raise ConfigError(f"found {found(value)}, expected a list of texts or a mapping", origin=origin, key="tags")
    for tag, tag_value in pairs:
        if isinstance(tag, bool) or not isinstance(tag, (str, int, float)) or tag == "":
            raise ConfigError(f"found {found(tag)} as a tag, expected text", origin=origin, key="tags")
        if tag_value is not None and not isinstance(tag_value, (str, int, float)):
            raise ConfigError(
                f"found {found(tag_value)}, expected text or nothing", origin=origin, key=key_text(("tags", str(tag)))
            )
        yield str(tag), None if tag_value is None else _tag_text(tag_value)


def _tag_text(value: str | int | float | bool) -> str:
    return found(value) if isinstance(value, bool) else str(value)


def _check_key(key: str, section: type[msgspec.Struct], origin: str, path: KeyPath) -> None:
    if key not in section.__struct_fields__:
        message = unknown("unknown key", key, section.__struct_fields__, f"Keys of {path[-1]}")
        raise ConfigError(message, origin=origin, key=key_text((*path, key)))


def _forget_other_kind(tree: Tree, layer: Layer, name: str) -> None:
    said = layer.values.get(("backends", name, "adapter"))
    below = tree.get("backends")
    entry = below.get(name) if isinstance(below, dict) else None
    if said is None or not isinstance(below, dict) or not isinstance(entry, dict):
        return
    kind = entry.get("adapter")
    if (kind.value if isinstance(kind, Leaf) else name) != said.value:
        del below[name]


def _set(tree: Tree, path: KeyPath, leaf: Leaf) -> None:
    for part in path[:-1]:
        part = _spelled(tree, part, leaf)
        child = tree.get(part)
        if isinstance(child, Leaf):
            child = _opened(child)
        if child is None:
            child = {}
        tree[part] = child
        tree = child
    tree[_spelled(tree, path[-1], leaf)] = leaf


def _spelled(tree: Tree, part: str, leaf: Leaf) -> str:
    # Environment variables are in one case; a key that is there already says how it is written.
    return next((name for name in tree if leaf.untyped and fold(name) == fold(part)), part)


def _opened(leaf: Leaf) -> Tree | None:
    value = leaf.value
    if leaf.untyped and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, dict):
        return None
    return {
        name: dataclasses.replace(leaf, value=item, key=leaf.key and f"{leaf.key}.{name}")
        for name, item in value.items()
    }
