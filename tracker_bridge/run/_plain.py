"""Params and tags of any shape to plain data: str, int, float, bool, None, lists and string-keyed mappings.

Nothing here raises for an odd value, not even for one that raises whatever it is asked: a hyper-parameter that cannot
be stored as it is, is stored as readable text without memory addresses, so that two equal runs have equal params.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import enum
import functools
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LARGEST_INT = 2**63 - 1
_DEEPEST = 32
_LONGEST_ARRAY = 64


def plain_params(params: Any) -> dict[str, Any]:
    """A mapping, dataclass, argparse Namespace, msgspec Struct or OmegaConf config as a nested plain mapping.

    Raises `TypeError` for anything that has no named fields, or whose fields cannot be read.
    """
    try:
        value = _plain_value(params, ())
    except Exception as error:
        raise TypeError(
            f"params: the fields of {type(params).__name__} cannot be read ({type(error).__name__}: {error})"
        ) from error
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
        return {_tag(key): None if value is None else _tag_value(value) for key, value in tags.items()}
    if isinstance(tags, Iterable):
        return {_tag(tag): None for tag in tags}
    raise TypeError(f"tags must be texts or a mapping of texts, not {type(tags).__name__}")


def _tag(tag: Any) -> str:
    if isinstance(tag, str):
        return tag
    if isinstance(tag, (int, float, enum.Enum)):
        return str(_plain(tag, ()))
    raise TypeError(f"a tag must be text, not {type(tag).__name__} ({tag!r})")


def _tag_value(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return str(_plain(value, ()))


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    try:
        return _plain_value(value, above)
    except Exception as error:
        return f"<{type(value).__name__}, which raises {type(error).__name__}>"


def _plain_value(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or type(value) in (str, bool, float):
        return value.encode("utf-8", "replace").decode() if type(value) is str and not value.isascii() else value
    if isinstance(value, enum.Enum):
        return _plain(value.value, above) if isinstance(value.value, (str, int, float)) else value.name
    if isinstance(value, int):
        return int(value) if -_LARGEST_INT - 1 <= value <= _LARGEST_INT else _digits(int(value))
    if isinstance(value, (str, float)):
        return _plain(str(value) if isinstance(value, str) else float(value), above)
    if id(value) in above or len(above) > _DEEPEST:
        return f"<{type(value).__name__} that contains itself>" if id(value) in above else "<nested too deeply>"
    return _plain_object(value, (*above, id(value)))


def _plain_object(value: Any, above: tuple[int, ...]) -> Any:
    named = _named_fields(value)
    if named is not None:
        return {_text(key): _plain(inner, above) for key, inner in named}
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
    if isinstance(value, (type, types.ModuleType)):
        return _described(value, above)
    shape = _shape(value)
    if shape is not None:
        return _plain_array(value, shape, above)
    if isinstance(value, np.dtype) or type(value).__module__ == "torch":
        return str(value)
    return _described(value, above)


def _named_fields(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """The names and values of what has such; None for anything else."""
    if isinstance(value, type):
        return None
    # Only a package that the script has imported itself can have made its config object.
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        return _of_omegaconf(omegaconf.OmegaConf, value)
    if dataclasses.is_dataclass(value):
        return _attributes(value, [field.name for field in dataclasses.fields(value)])
    if isinstance(value, Mapping):
        return _items(value)
    if isinstance(value, argparse.Namespace):
        return vars(value).items()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict()).items()
    fields = _attribute(value, "__struct_fields__")
    if fields is not None:
        return _attributes(value, fields)
    dump = _attribute(value, "model_dump")
    dumped = dump() if callable(dump) else None
    return dumped.items() if isinstance(dumped, dict) else None


def _of_omegaconf(omegaconf: Any, value: Any) -> Iterable[tuple[Any, Any]] | None:
    try:
        plain = omegaconf.to_container(value, resolve=True, throw_on_missing=False)
    except Exception:  # an interpolation that leads nowhere, or whose resolver raises
        plain = omegaconf.to_container(value, resolve=False, throw_on_missing=False)
    return plain.items() if isinstance(plain, dict) else None


def _items(value: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    try:
        return list(value.items())
    except Exception:
        return [(key, _read(value.__getitem__, key)) for key in value]


def _attributes(value: Any, names: Iterable[str]) -> Iterable[tuple[str, Any]]:
    """The named attributes; one that was never set is left out."""
    return [(name, _read(functools.partial(getattr, value), name)) for name in names if _is_set(value, name)]


def _is_set(value: Any, name: str) -> bool:
    try:
        return hasattr(value, name)
    except Exception:
        return True


def _read(get: Callable[[Any], Any], key: Any) -> Any:
    try:
        return get(key)
    except Exception as error:
        return f"<raises {type(error).__name__}>"


def _attribute(value: Any, name: str) -> Any:
    """None also where asking for it raises something else than `AttributeError`."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array or a tensor of any library; None for what is none."""
    if _attribute(value, "dtype") is None:
        return None
    try:
        return tuple(int(length) for length in value.shape)
    except Exception:
        return None


def _plain_array(value: Any, shape: tuple[int, ...], above: tuple[int, ...]) -> Any:
    on_cpu = getattr(getattr(value, "device", None), "type", "cpu") == "cpu"
    if math.prod(shape) > _LONGEST_ARRAY or not on_cpu or not hasattr(value, "tolist"):
        return f"{type(value).__name__}(shape={shape}, dtype={value.dtype})"
    listed = value.tolist()
    # A longdouble has no plain form, and NumPy gives it back.
    return str(value) if type(listed) is type(value) else _plain(listed, above)


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python makes (4,300); in base 16 there is no such limit
        return hex(value)


def _described(value: Any, above: tuple[int, ...]) -> str:
    if isinstance(value, functools.partial):
        given = [repr(_plain(argument, above)) for argument in value.args]
        given += [f"{key}={_plain(argument, above)!r}" for key, argument in value.keywords.items()]
        return f"partial({', '.join([_described(value.func, above), *given])})"
    if isinstance(value, types.ModuleType):
        return value.__name__
    name = _attribute(value, "__qualname__")
    if isinstance(name, str) and (callable(value) or isinstance(value, type)):
        return f"{getattr(value, '__module__', '') or ''}.{name}".lstrip(".")
    try:
        return _ADDRESS.sub("", repr(value)).encode("utf-8", "replace").decode()
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def _text(key: Any) -> str:
    return key.encode("utf-8", "replace").decode() if isinstance(key, str) else str(_plain(key, ()))
