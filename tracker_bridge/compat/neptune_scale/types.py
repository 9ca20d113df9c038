"""`neptune_scale.types`: what `Run.log_files` and `Run.log_histograms` take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["File", "Histogram"]


@dataclass
class File:
    """A file to keep. `source`: a path, or the content. `size` and `destination` have no meaning here."""

    source: str | Path | bytes
    mime_type: str | None = None
    size: int | None = None
    destination: str | None = None


@dataclass
class Histogram:
    """Bin edges [B + 1] with either counts [B] or densities [B]: lists or 1-d arrays."""

    bin_edges: Sequence[float] | Any
    counts: Sequence[int] | Any | None = None
    densities: Sequence[float] | Any | None = None

    def bin_edges_as_list(self) -> list[float]:
        """The edges as a list. Raises `TypeError` if they are neither a list nor an array."""
        return _as_list(self.bin_edges, "Bin edges")

    def counts_as_list(self) -> list[float]:
        """The counts as a list. Raises `TypeError` if they are neither a list nor an array."""
        return _as_list(self.counts, "Counts")

    def densities_as_list(self) -> list[float]:
        """The densities as a list. Raises `TypeError` if they are neither a list nor an array."""
        return _as_list(self.densities, "Densities")


def _as_list(values: Any, what: str) -> list[float]:
    if isinstance(values, list):
        return values
    if hasattr(values, "tolist"):
        found: list[float] = values.tolist()
        return found
    raise TypeError(f"{what} must be of type list or np.ndarray, got {type(values)}")
