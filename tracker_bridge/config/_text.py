"""How configuration errors speak: key paths, the nearest valid word, what was found, what a type expects."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union

import msgspec

KeyPath = tuple[str, ...]

_LONGEST_SHOWN = 60
_SHORTEST_BEGINNING = 3
_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    bytes: "bytes",
    Path: "a path",
    type(None): "null",
    Any: "any value",
}


def key_text(path: KeyPath) -> str:
    """`("backends", "wandb", "mode")` as `backends.wandb.mode`; parts that hold a dot are quoted."""
    return ".".join(f'"{part}"' if "." in part or not part else part for part in path)


def nearest(word: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing if no valid word is near."""
    by_folded = {fold(candidate): candidate for candidate in valid}
    begun = [name for name in by_folded if name.startswith(fold(word)) and len(word) >= _SHORTEST_BEGINNING]
    near = get_close_matches(fold(word), by_folded, n=1, cutoff=0.6) or begun
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""


def listed(words: Iterable[str]) -> str:
    """The words in alphabetical order."""
    return ", ".join(sorted(words)) or "none"


def unknown(what: str, word: str, valid: Iterable[str], plural: str) -> str:
    """The sentence for a word that is none of the valid ones."""
    words = list(valid)
    near = nearest(word, words)
    return f"{what}{near or '.'} {plural}: {listed(words)}"


def fold(name: str) -> str:
    """The form in which names of backends and options are compared with environment variables."""
    return name.casefold().replace("-", "_").replace(".", "_")


def found(value: Any) -> str:
    """What stood in the configuration, short, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, int, float)):
        text = repr(value)
        return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 4]}...{text[0]}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (Sequence, Set)):
        return "a list"
    return f"a {type(value).__qualname__}"


def describe_type(kind: Any) -> str:
    """A type in words: `a whole number of at least 1`, `one of offline, online`."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is typing.Annotated:
        return describe_type(arguments[0]) + "".join(
            _limits(meta) for meta in arguments[1:] if isinstance(meta, msgspec.Meta)
        )
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(argument) for argument in arguments)
    if origin is Literal:
        words = [str(argument) for argument in arguments]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    base = origin or kind
    if isinstance(base, type) and issubclass(base, (list, tuple, Set, Sequence)) and base not in (str, bytes):
        inner = [argument for argument in arguments if argument is not ...]
        return "a list" if not inner or inner[0] is Any else f"a list of {_each(inner[0])}"
    if isinstance(base, type) and issubclass(base, Mapping):
        plain = not arguments or arguments[1] is Any
        return "a mapping" if plain else f"a mapping from {' to '.join(map(describe_type, arguments))}"
    return _WORDS.get(kind) or f"a {getattr(kind, '__qualname__', kind)}"


def choices(kind: Any) -> tuple[str, ...]:
    """The words of every `Literal` in a type, for the nearest one."""
    if typing.get_origin(kind) is Literal:
        return tuple(str(argument) for argument in typing.get_args(kind))
    return tuple(word for argument in typing.get_args(kind) for word in choices(argument))


def in_words(name: str) -> str:
    """A type name out of msgspec's message in the words of `describe_type`."""
    names = {"str": str, "int": int, "float": float, "bool": bool, "null": type(None)}
    plain = {"array": "a list", "object": "a mapping"}
    return " or ".join(
        plain.get(part) or (_WORDS[names[part]] if part in names else part)
        for part in (piece.strip() for piece in name.split("|"))
    )


def _each(kind: Any) -> str:
    if kind is str:
        return "texts"
    words = choices(kind)
    if words:
        return ", ".join(words)
    return describe_type(kind).removeprefix("a ").removeprefix("an ") + "s"


def _limits(meta: msgspec.Meta) -> str:
    parts = [
        ("of at least", meta.ge),
        ("above", meta.gt),
        ("of at most", meta.le),
        ("below", meta.lt),
        ("matching", meta.pattern),
    ]
    return "".join(f" {word} {limit}" for word, limit in parts if limit is not None)
