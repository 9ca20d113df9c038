"""One merged value into the type that its key has: references replaced, text from the environment read by that type."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tracker_bridge.config._layers import Leaf, Tree
from tracker_bridge.config._references import is_mistake
from tracker_bridge.config._secrets import hide_in_urls, is_secret_key
from tracker_bridge.config._text import KeyPath, choices, describe_type, found, in_words, nearest
from tracker_bridge.errors import ConfigError

_REFERENCE = re.compile(r"\$?\$\{env:[^}]*\}?|\$\$\{(?=(?P<word>[A-Za-z_][\w.-]*):)")
_REFERENCE_FORM = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")
_EXPECTED = re.compile(r"Expected `([a-z| ]+)`")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")


def resolve(tree: Tree | Leaf, environ: Mapping[str, str], path: KeyPath, references: dict[KeyPath, str]) -> Leaf:
    """The tree as one leaf of plain data. Fills `references`; raises `ConfigError` for a variable that is not set."""
    if isinstance(tree, Leaf):
        before = len(references)
        value = _interpolate(tree.value, tree, environ, path, references) if tree.interpolated else tree.value
        untyped = tree.untyped or (path in references and len(references) > before)
        return Leaf(value, tree.origin, tree.key, untyped=untyped)
    children = {name: resolve(child, environ, (*path, name), references) for name, child in tree.items()}
    first = next(iter(children.values()), Leaf({}, "", None))
    return Leaf({name: child.value for name, child in children.items()}, first.origin, first.key, untyped=True)


def _interpolate(
    value: Any, leaf: Leaf, environ: Mapping[str, str], path: KeyPath, references: dict[KeyPath, str]
) -> Any:
    if isinstance(value, str) and "${" in value:
        replaced = _REFERENCE.sub(lambda match: _replacement(match, leaf, environ, path), value)
        if any(match[0].startswith("${") for match in _REFERENCE.finditer(value)):
            references[path] = value
        return replaced
    if isinstance(value, dict):
        return {k: _interpolate(v, leaf, environ, (*path, str(k)), references) for k, v in value.items()}
    if isinstance(value, list):
        return [_interpolate(v, leaf, environ, (*path, str(i)), references) for i, v in enumerate(value)]
    return value


def _replacement(reference: re.Match[str], leaf: Leaf, environ: Mapping[str, str], path: KeyPath) -> str:
    text = reference[0]
    if reference["word"] and not is_mistake(reference["word"], path):
        return text
    if text.startswith("$$"):
        return text[1:]
    match = _REFERENCE_FORM.fullmatch(text)
    if match is None:
        raise leaf.error(f"found {text!r}, expected ${{env:NAME}} or ${{env:NAME:default}}")
    value = environ.get(match[1], match[2])
    if value is None:
        raise leaf.error(
            f"the environment variable {match[1]} is not set; set it, or give a default with "
            f"${{env:{match[1]}:default}}"
        )
    return value


def convert(leaf: Leaf, kind: Any, *, secret: bool | None = None) -> Any:
    """The leaf's value as `kind`. Raises `ConfigError` with what was found and what is expected, without secrets."""
    value = leaf.value
    for candidate in _readings(value) if leaf.untyped else (value,):
        try:
            return msgspec.convert(candidate, type=kind, strict=not leaf.untyped, dec_hook=_decode)
        except msgspec.ValidationError as error:
            problem = str(error)
    hidden = is_secret_key(leaf.key or leaf.origin) if secret is None else secret
    raise _mismatch(leaf, kind, problem, hidden)


def _readings(value: Any) -> list[Any]:
    """In which ways a text can be meant: as it is, as JSON, as a list separated by commas, as a list of one."""
    if not isinstance(value, str):
        return [value]
    readings: list[Any] = [value]
    if value[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            readings.insert(0, json.loads(value))
    readings.append([part.strip() for part in value.split(",") if part.strip()])
    return readings


def _decode(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise NotImplementedError


def _mismatch(leaf: Leaf, kind: Any, message: str, secret: bool) -> ConfigError:
    complaint, _, place = message.partition(" - at `")
    inner = place.removeprefix("key in ").strip("`").removeprefix("$")
    if inner.startswith("[...]") and isinstance(leaf.value, dict):
        leaf, kind, inner = _entry(leaf, kind)
    value = _at(leaf.value, inner)
    secret = secret or is_secret_key(inner)
    stray = _UNKNOWN_FIELD.match(complaint)
    if stray:
        return ConfigError(f"unknown key {stray[1]!r}", origin=leaf.origin, key=f"{leaf.key or ''}{inner}" or None)
    named = _EXPECTED.match(complaint)
    wanted = in_words(named[1]) if inner and named and not choices(kind) else describe_type(kind)
    hint = ""
    if not secret and isinstance(value, str):
        hint = nearest(value, choices(kind))
    elif not secret and isinstance(value, (int, float)) and not isinstance(value, bool) and wanted.startswith("text"):
        hint = f'; write it in quotes: "{value}"'
    key = f"{leaf.key or ''}{inner}" or None
    return ConfigError(f"found {_shown(value, secret)}, expected {wanted}{hint}", origin=leaf.origin, key=key)


def _entry(leaf: Leaf, kind: Any) -> tuple[Leaf, Any, str]:
    """The first entry of a mapping that does not fit, as a leaf of its own."""
    inner = typing.get_args(kind)[1]
    for name, item in leaf.value.items():
        try:
            msgspec.convert({name: item}, type=kind, strict=not leaf.untyped)
        except msgspec.ValidationError:
            return dataclasses.replace(leaf, value=item, key=f"{leaf.key or ''}.{name}"), inner, ""
    return leaf, kind, ""


def _shown(value: Any, secret: bool) -> str:
    if secret and isinstance(value, (str, bytes, int, float)) and not isinstance(value, bool):
        return "a value (not shown)"
    return found(hide_in_urls(value) if isinstance(value, str) else value)


def _at(value: Any, place: str) -> Any:
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", place):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            return value
    return value
