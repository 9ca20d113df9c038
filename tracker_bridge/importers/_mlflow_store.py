"""What the three ways into an MLflow store have in common."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from tracker_bridge.records import Metrics


@dataclass(slots=True)
class Description:
    """A run without its metrics. Times are milliseconds since the epoch."""

    run_id: str
    experiment_id: str = ""
    status: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    artifact_uri: str = ""
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class Store(Protocol):
    """One run in a store."""

    def describe(self) -> Description:
        """Everything but metrics and artifacts."""
        ...

    def metrics(self) -> Iterator[Metrics]:
        """All points, by (time, step)."""
        ...

    def artifact_folders(self) -> Iterator[Path]:
        """Where the artifacts may lie on this machine, best first."""
        ...


def restored_value(value: float) -> float:
    """The largest double back to the infinity that the SQL store made it from."""
    if abs(value) == sys.float_info.max:
        return math.copysign(math.inf, value)
    return value


def local_folders(uri: str, base: Path, experiment_id: str, run_id: str) -> Iterator[Path]:
    """Where the artifacts may be: first where MLflow's defaults put them beside the store, then where `uri` points.

    (Artifact locations are absolute: in a copy of a store they still lead to the original.)
    """
    for folder in ("mlruns", "mlartifacts", "."):
        yield base / folder / experiment_id / run_id / "artifacts"
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        yield base / unquote(parts.path)
