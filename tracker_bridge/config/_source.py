"""Finds the configuration and turns whatever it was given as into plain data, with a name for error messages.

May read the configuration's own file, nothing else. OmegaConf is looked at only if the script has imported it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import msgspec

from tracker_bridge.config._files import read_file
from tracker_bridge.config._text import found
from tracker_bridge.errors import ConfigError

CONFIG_VARIABLE = "TRACKER_BRIDGE_CONFIG"
DISCOVERED = ("tracker_bridge.yaml", "tracker_bridge.yml", "tracker_bridge.toml")
PYPROJECT = "pyproject.toml"
PYPROJECT_TABLE = "[tool.tracker_bridge]"


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A source as plain data. `origin` is how error messages call it."""

    tree: Mapping[str, Any]
    origin: str


def read_source(source: Any, cwd: Path, environ: Mapping[str, str]) -> Document:
    """The document that `source` is, names, or (None) leads to. Raises `ConfigError`."""
    if source is None:
        return _discover(cwd, environ)
    if isinstance(source, (str, os.PathLike)):
        return _read(Path(source), str(source), cwd)
    tree = plain(_resolve_omegaconf(source))
    if not isinstance(tree, dict):
        raise ConfigError(
            f"found {found(source)} as the configuration; expected the path of a YAML, TOML or JSON file, a mapping, "
            "a Config or a dataclass"
        )
    return Document(tree, "the given configuration")


def _discover(cwd: Path, environ: Mapping[str, str]) -> Document:
    named = environ.get(CONFIG_VARIABLE)
    if named:
        return _read(Path(named), named, cwd)
    for name in DISCOVERED:
        if (cwd / name).is_file():
            return _read(Path(name), name, cwd)
    if (cwd / PYPROJECT).is_file():
        document = _read_if_any(Path(PYPROJECT), PYPROJECT, cwd)
        if document is not None:
            return document
    return Document({}, "default")


def _read(path: Path, origin: str, cwd: Path) -> Document:
    document = _read_if_any(path, origin, cwd)
    if document is None:
        raise ConfigError("there is no such table in the file", origin=f"{origin} {PYPROJECT_TABLE}")
    return document


def _read_if_any(path: Path, origin: str, cwd: Path) -> Document | None:
    content = read_file(cwd / path.expanduser(), origin)
    if path.name == PYPROJECT:
        tool = content.get("tool") if isinstance(content, dict) else None
        table = tool.get("tracker_bridge") if isinstance(tool, dict) else None
        origin = f"{origin} {PYPROJECT_TABLE}"
        if table is None:
            return None
        content = table
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"found {found(content)} as the whole document, expected a mapping of keys", origin=origin)
    return Document(plain(content), origin)


def plain(value: Any) -> Any:
    """Mappings, dataclasses and structs as dicts, sequences as lists, paths as text; anything else as it is."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [plain(item) for item in value]
    return value


def _resolve_omegaconf(source: Any) -> Any:
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not isinstance(source, omegaconf.Container):
        return source
    return _walk_omegaconf(source, omegaconf)


def _walk_omegaconf(node: Any, omegaconf: Any) -> Any:
    # OmegaConf 2.4 knows no `env` resolver: such texts are left for this library's own `${env:...}`.
    raw = omegaconf.OmegaConf.to_container(node, resolve=False)
    keys = list(raw) if isinstance(raw, dict) else range(len(raw))
    resolved: dict[Any, Any] = {}
    for key in keys:
        if isinstance(raw[key], str) and "${env:" in raw[key]:
            resolved[key] = raw[key]
            continue
        try:
            value = node[key]
        except omegaconf.errors.OmegaConfBaseException as error:
            problem = (getattr(error, "msg", None) or str(error) or type(error).__name__).splitlines()[0]
            where = getattr(error, "full_key", None) or str(key)
            raise ConfigError(problem, origin="the given configuration", key=where) from None
        is_node = isinstance(value, omegaconf.Container)
        resolved[key] = _walk_omegaconf(value, omegaconf) if is_node else value
    return resolved if isinstance(raw, dict) else list(resolved.values())
