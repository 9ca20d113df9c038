"""Packages that only some formats need, imported when they are needed."""

from __future__ import annotations

import importlib
from types import ModuleType


def needed(module: str, install: str) -> ModuleType:
    """The module. Raises `ImportError` that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module.partition('.')[0]}; install it with: pip install {install!r}") from error
