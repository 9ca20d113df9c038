"""The kinds of foreign runs, each in a module of its own that is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast

from tracker_bridge.errors import did_you_mean
from tracker_bridge.importers._model import ForeignRun, Reading
from tracker_bridge.records import Record

_MODULES = {
    "neptune-db": "_neptune_db",
    "neptune-export": "_neptune_export",
    "tensorboard": "_tensorboard",
    "wandb": "_wandb",
    "mlflow": "_mlflow",
    "csv": "_table",
    "jsonl": "_table",
}

KINDS: tuple[str, ...] = tuple(_MODULES)
"""What `discover` and `import_tree` take as `kind`."""


class _Importer(Protocol):
    def discover(self, kind: str, path: str) -> Iterator[ForeignRun]: ...

    def read(self, run: ForeignRun, reading: Reading) -> Iterator[Record]: ...


def discover(kind: str, path: str | Path) -> Iterator[ForeignRun]:
    """The runs of that kind at or below `path` (for `mlflow` also a tracking URI), in a stable order.

    Raises `ValueError` on an unknown kind, `FileNotFoundError` where there is nothing at `path`, `ForeignFormatError`
    where `path` itself is a file of another format.
    """
    return _importer(kind).discover(kind, str(path))


def reader(kind: str) -> Callable[[ForeignRun, Reading], Iterator[Record]]:
    """The kind's `read`."""
    return _importer(kind).read


def _importer(kind: str) -> _Importer:
    module = _MODULES.get(kind)
    if module is None:
        raise ValueError(f"unknown kind {kind!r}{did_you_mean(kind, KINDS)} (known: {', '.join(KINDS)})")
    return cast("_Importer", importlib.import_module(f"{__package__}.{module}"))
