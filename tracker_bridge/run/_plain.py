"""Params and tags of any shape to plain data: str, int, float, bool, None, lists and string-keyed mappings.

Nothing here raises for an odd value: a hyper-parameter that cannot be stored as it is, is stored as readable text
without memory addresses, so that two equal runs have equal params.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import enum
import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LARGEST_INT = 2**63 - 1
_DEEPEST = 32
_LONGEST_ARRAY = 64


def plain_params(params: Any) -> dict[str, Any]:
    """A mapping, dataclass, argparse Namespace, msgspec Struct or OmegaConf config as a nested plain mapping.

    Raises `TypeError` for anything that has no named fields.
    """
    value = _plain(params, ())
    if not isinstance(value, dict):
        kind = type(params).__name__
        raise TypeError(f"params must be a mapping, a dataclass, a Namespace or a DictConfig, not {kind}")
    return value


def plain_tags(tags: Any) -> dict[str, str | None]:
    """A list of texts, a mapping, or one text as tag -> value (None for a plain tag). Raises `TypeError`."""
    if tags is None:
        return {}
    if isinstance(tags, str):
        return {tags: None}
    if isinstance(tags, Mapping):
        return {_tag(key): None if value is None else str(value) for key, value in tags.items()}
    if isinstance(tags, Iterable):
        return {_tag(tag): None for tag in tags}
    raise TypeError(f"tags must be texts or a mapping of texts, not {type(tags).__name__}")


def _tag(tag: Any) -> str:
    if isinstance(tag, str):
        return tag
    if isinstance(tag, (int, float, enum.Enum)):
        return str(_plain(tag, ()))
    raise TypeError(f"a tag must be text, not {type(tag).__name__} ({tag!r})")


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or type(value) in (str, bool, float):
        return value.encode("utf-8", "replace").decode() if type(value) is str and not value.isascii() else value
    if isinstance(value, enum.Enum):
        return _plain(value.value, above) if isinstance(value.value, (str, int, float)) else value.name
    if isinstance(value, int):
        return int(value) if -_LARGEST_INT - 1 <= value <= _LARGEST_INT else str(int(value))
    if isinstance(value, (str, float)):
        return _plain(str(value) if isinstance(value, str) else float(value), above)
    if id(value) in above or len(above) > _DEEPEST:
        return f"<{type(value).__name__} that contains itself>" if id(value) in above else "<nested too deeply>"
    return _plain_object(value, (*above, id(value)))


def _plain_object(value: Any, above: tuple[int, ...]) -> Any:
    named = _named_fields(value)
    if named is not None:
        return {_text(key): _plain(inner, above) for key, inner in named.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, above) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(inner, above) for inner in value), key=repr)
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return _plain(os.fspath(value), above)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace").replace("\x00", "\ufffd")
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _plain_array(value, above)
    if isinstance(value, np.dtype) or type(value).__module__ == "torch":
        return str(value)
    return _described(value, above)


def _named_fields(value: Any) -> Mapping[Any, Any] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _resolved(value)
    if isinstance(value, argparse.Namespace):
        return vars(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    fields = getattr(value, "__struct_fields__", None)
    if fields is not None and not isinstance(value, type):
        return {name: getattr(value, name) for name in fields}
    # Only a package that the script has imported itself can have made its config object.
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        resolved = omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=False)
        return resolved if isinstance(resolved, dict) else None
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        dumped = dump()
        return dumped if isinstance(dumped, dict) else None
    return None


def _resolved(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        return dict(omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=False))
    return value


def _plain_array(value: Any, above: tuple[int, ...]) -> Any:
    count = 1
    for length in value.shape:
        count *= int(length)
    on_cpu = getattr(getattr(value, "device", None), "type", "cpu") == "cpu"
    if count > _LONGEST_ARRAY or not on_cpu or not hasattr(value, "tolist"):
        return f"{type(value).__name__}(shape={tuple(value.shape)}, dtype={value.dtype})"
    return _plain(value.tolist(), above)


def _described(value: Any, above: tuple[int, ...]) -> str:
    if isinstance(value, functools.partial):
        given = [repr(_plain(argument, above)) for argument in value.args]
        given += [f"{key}={_plain(argument, above)!r}" for key, argument in value.keywords.items()]
        return f"partial({', '.join([_described(value.func, above), *given])})"
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str) and (callable(value) or isinstance(value, type)):
        return f"{getattr(value, '__module__', '') or ''}.{name}".lstrip(".")
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def _text(key: Any) -> str:
    return key.encode("utf-8", "replace").decode() if isinstance(key, str) else str(_plain(key, ()))
