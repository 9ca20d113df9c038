"""Registers the adapters of `adapters.py` for the tests of this folder, and gives a loader with nothing around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.config.adapters import AbsentAdapter, AlphaAdapter, BetaAdapter
from tracker_bridge import registry
from tracker_bridge.config import Config, load_config

KINDS = {"alpha": AlphaAdapter, "beta": BetaAdapter, "absent": AbsentAdapter}
Load = Callable[..., Config]


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    for kind, cls in KINDS.items():
        registry.register(kind, cls)
    yield
    for kind in KINDS:
        registry.unregister(kind)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load_config` in an empty folder and, unless the test gives one, an empty environment."""

    def load(source: Any = None, *, environ: dict[str, str] | None = None, **arguments: Any) -> Config:
        return load_config(source, environ=environ or {}, cwd=tmp_path, **arguments)

    return load
