"""`TRACKER_BRIDGE_*` environment variables as a layer.

    TRACKER_BRIDGE_PROJECT, _EXPERIMENT, _NAME, _RUN_ID, _RESUME, _RANKS   one key
    TRACKER_BRIDGE_TAGS                                              tags, separated by commas
    TRACKER_BRIDGE_DIR                                               the same as TRACKER_BRIDGE_QUEUE__DIR
    TRACKER_BRIDGE_BACKENDS                                          names separated by commas, or none
    TRACKER_BRIDGE_<SECTION>__<KEY>                                  one key of gradients, queue or delivery
    TRACKER_BRIDGE_<BACKEND>__<KEY>                                  one option of a backend
    TRACKER_BRIDGE_<BACKEND>__ROUTE__<KEY>                           one key of its route
    TRACKER_BRIDGE_CONFIG                                            the configuration file (see `_source`)
    TRACKER_BRIDGE_NO_EXTENSIONS                                     no configuration (see `_extensions`)

Names are compared without regard to case, with `-` and `.` as `_`. An empty variable counts as unset. A variable of
this prefix that means nothing is an error, so that a typing mistake does not pass silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tracker_bridge._extensions import NO_EXTENSIONS
from tracker_bridge.config._layers import KEYS, SECTIONS, TEXTS, Layer, Leaf, backend_entries
from tracker_bridge.config._source import CONFIG_VARIABLE
from tracker_bridge.config._text import KeyPath, fold, unknown
from tracker_bridge.config._types import RouteConfig
from tracker_bridge.errors import ConfigError

PREFIX = "TRACKER_BRIDGE_"
_ELSEWHERE = (CONFIG_VARIABLE, NO_EXTENSIONS)
_PLAIN = (*TEXTS, "resume", "ranks", "tags", "dir", "backends", "config")


def environment_layer(
    environ: Mapping[str, str],
    configured: Iterable[str],
    kinds: Iterable[str],
    option_names: Callable[[str], Iterable[str]],
) -> Layer:
    """What the environment says.

    `configured`: backends that other sources name. `kinds`: adapters. `option_names`: backend -> names of its options.
    Raises `ConfigError` naming the variable.
    """
    variables = {
        name: value
        for name, value in environ.items()
        if name.upper().startswith(PREFIX) and value != "" and name.upper() not in _ELSEWHERE
    }
    listed = next((name for name in variables if fold(name[len(PREFIX) :]) == "backends"), None)
    backends = None if listed is None else tuple(backend_entries(variables[listed], listed))
    names = {fold(name): name for name in (*kinds, *configured, *(backends or ()))}
    values: dict[KeyPath, Leaf] = {}
    present: set[str] = set()
    # What names a whole option comes before what names a part of it.
    for variable, value in sorted(variables.items(), key=lambda item: item[0].count("__")):
        parts = [fold(part) for part in variable[len(PREFIX) :].split("__")]
        if len(parts) == 1:
            for path, item in _plain(variable, parts[0], value):
                values[path] = Leaf(item, variable, None, untyped=True)
        elif parts[0] in SECTIONS:
            _check(variable, parts[1], SECTIONS[parts[0]].__struct_fields__, f"Keys of {parts[0]}", len(parts) == 2)
            present.add(parts[0])
            values[(parts[0], parts[1])] = Leaf(value, variable, None, untyped=True)
        elif parts[0] in names:
            name = names[parts[0]]
            path = ("backends", name, *_option(variable, parts[1:], option_names(name)))
            values[path] = Leaf(value, variable, None, untyped=True)
        else:
            raise ConfigError(
                unknown(
                    f"there is no section and no backend {parts[0]!r}",
                    parts[0],
                    (*SECTIONS, *names.values()),
                    "Sections and backends",
                ),
                origin=variable,
            )
    return Layer(values, backends, listed or "", frozenset(present))


def _plain(variable: str, key: str, value: str) -> list[tuple[KeyPath, str | None]]:
    if key == "tags":
        return [(("tags", tag.strip()), None) for tag in value.split(",") if tag.strip()]
    if key == "dir":
        return [(("queue", "dir"), value)]
    if key == "backends":
        return []
    if key in _PLAIN:
        return [((key,), value)]
    if key in KEYS:
        raise ConfigError(f"set one key of it, with {variable}__<KEY>", origin=variable)
    shown = [f"{PREFIX}{name.upper()}" for name in _PLAIN]
    raise ConfigError(
        unknown("unknown environment variable", variable, shown, "Known ones")
        + f", {PREFIX}<BACKEND>__<OPTION>, {PREFIX}<SECTION>__<KEY>",
        origin=variable,
    )


def _option(variable: str, parts: list[str], options: Iterable[str]) -> tuple[str, ...]:
    if parts[0] == "route":
        key = parts[1] if len(parts) > 1 else ""
        _check(variable, key, RouteConfig.__struct_fields__, "Keys of a route", len(parts) == 2)
        return ("route", key)
    by_folded = {fold(option): option for option in (*options, "adapter")}
    if parts[0] not in by_folded:
        raise ConfigError(
            unknown(f"there is no option {parts[0]!r}", parts[0], by_folded.values(), "Valid options"), origin=variable
        )
    return (by_folded[parts[0]], *parts[1:])


def _check(variable: str, key: str, valid: Iterable[str], plural: str, right_depth: bool) -> None:
    if key not in valid:
        raise ConfigError(unknown(f"there is no key {key!r}", key, valid, plural), origin=variable)
    if not right_depth:
        raise ConfigError(f"there is nothing below the key {key!r}", origin=variable)
