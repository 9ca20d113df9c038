"""Reads a configuration file into plain data. Any failure is a `ConfigError` naming the file, line and column."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tracker_bridge.errors import ConfigError

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_file(path: Path, origin: str) -> Any:
    """The document in `path`, by its suffix; None if it is empty."""
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(f"unknown kind of file; expected a name that ends in {', '.join(SUFFIXES)}", origin=origin)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"no such file{_near_file(path)}", origin=origin) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"the file cannot be read: {reason}", origin=origin) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ConfigError(f"not UTF-8 text: byte {error.start} is {byte:#04x}", origin=origin) from None
    return parse(text, origin)


def _near_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix.lower() in SUFFIXES]
    except OSError:
        return f"; the folder {path.parent} does not exist"
    near = get_close_matches(path.name, names, n=1)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _parse_yaml(text: str, origin: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = origin if mark is None else f"{origin}:{mark.line + 1}:{mark.column + 1}"
        problem = (error.problem or error.context or "syntax error").splitlines()[0]
        # The complaint about a repeated key quotes both values, which may be secrets.
        problem = problem.partition(" with value ")[0]
        raise ConfigError(f"not valid YAML: {problem}", origin=place) from None
    except (YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise ConfigError(f"not valid YAML: {str(problem).splitlines()[0]}", origin=origin) from None


def _parse_toml(text: str, origin: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        match = _TOML_PLACE.search(message)
        problem = message[: match.start()] if match else message
        place = origin
        if match:
            line, column = (match[1], match[2]) if match[1] else _end(text)
            place = f"{origin}:{line}:{column}"
        raise ConfigError(f"not valid TOML: {problem[:1].lower()}{problem[1:]}", origin=place) from None


def _end(text: str) -> tuple[int, int]:
    lines = text.split("\n")
    return len(lines), len(lines[-1]) + 1


def _parse_json(text: str, origin: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise ConfigError(f"not valid JSON: {problem}", origin=f"{origin}:{error.lineno}:{error.colno}") from None


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".toml": _parse_toml,
    ".json": _parse_json,
}
