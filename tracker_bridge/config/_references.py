"""What looks like a reference in a configuration and is none: a typing mistake outside, other tools' text in params.

The only resolver is `env`. `${word:...}` with another word is a mistake where the bridge or a tracker's SDK reads the
value; in `params` and `tags`, which are the script's own data, only if the word looks like `env`. `$${word:...}` is
text, and so is `${NAME}`, which names no resolver. Nothing of a value but the word is shown: it may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from tracker_bridge.config._layers import Layer
from tracker_bridge.config._text import KeyPath
from tracker_bridge.errors import ConfigError

RESOLVER = "env"
_FORMS = "${env:NAME} and ${env:NAME:default}"
_CALL = re.compile(r"(?<!\$)\$\{(?P<space>\s*)(?P<word>[A-Za-z_][\w.-]*)(?P<after>\s*):")
_MALFORMED = re.compile(r"(?<!\$)\$\{\s*env\s*[^\w\s:}]")
_OF_THE_SCRIPT = ("params", "tags")


def is_mistake(word: str, path: KeyPath) -> bool:
    """Whether `${word:...}` at this key path cannot be meant as it stands."""
    return path[0] not in _OF_THE_SCRIPT or _near(word)


def check_references(layer: Layer) -> None:
    """Raise `ConfigError` for the first text of the layer with a resolver that does not exist."""
    for path, leaf in layer.values.items():
        if not leaf.interpolated:
            continue
        for inner, text in _texts(leaf.value):
            problem = _problem(text, path)
            if problem:
                raise ConfigError(problem, origin=leaf.origin, key=f"{leaf.key or ''}{inner}")


def _problem(text: str, path: KeyPath) -> str | None:
    for call in _CALL.finditer(text):
        word = call["word"]
        if word == RESOLVER and (call["space"] or call["after"]):
            return f"found {call[0]!r}, expected {_FORMS.replace(' and ', ' or ')}"
        if word != RESOLVER and is_mistake(word, path):
            hint = f"; did you mean {RESOLVER!r}?" if _near(word) else "."
            return (
                f"unknown resolver {word!r}{hint} There is {_FORMS}; write $${{{word}:...}} for these characters "
                "themselves"
            )
    malformed = _MALFORMED.search(text)
    if malformed and path[0] not in _OF_THE_SCRIPT:
        return f"found {malformed[0]!r}, expected {_FORMS.replace(' and ', ' or ')}"
    return None


def _near(word: str) -> bool:
    folded = word.casefold()
    last = folded.rpartition(".")[2]
    return folded.startswith(RESOLVER) or last == RESOLVER or bool(get_close_matches(folded, [RESOLVER]))


def _texts(value: Any, inner: str = "") -> Iterator[tuple[str, str]]:
    """Each text in nested plain data, with its place in the form that errors use."""
    if isinstance(value, str):
        yield inner, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{inner}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{inner}[{index}]")
