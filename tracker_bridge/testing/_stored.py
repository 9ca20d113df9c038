"""What a tracker has of one run, in one form for all trackers. Filled by a suite's `read_back`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Point(NamedTuple):
    """One value of a series. `time`: seconds since the epoch, None where the tracker keeps none."""

    step: float
    value: float
    time: float | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Read from the tracker itself, never from the adapter's own state.

    `metrics`: tracker's series name -> its points in the order of steps, those kept apart for coming late included.
    `renamed`: tracker's series name -> original, where they differ, as the tracker tells it.
    `params`: the tracker's own keys (nested ones joined by the param rule's separator, or `/` where it nests by
    itself) -> value as stored. `changed_params`: where params cannot change, key -> the latest value.
    `full_params`: all params, nested and uncut; None if the tracker keeps them in `params` only.
    `tags`: tag -> value (None: a plain tag, however the tracker writes it). `texts`: name -> (step or None, text).
    `histograms`: name -> (step, edges, counts). `artifacts`: name -> content, or None if only its name is kept.
    `status`: the tracker's own word. `context`: what it shows of the provenance, with the names of `RunInfo`'s.
    `runs`: how many runs the tracker has of it.
    """

    metrics: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    changed_params: Mapping[str, Any] = field(default_factory=dict)
    full_params: Mapping[str, Any] | None = None
    tags: Mapping[str, str | None] = field(default_factory=dict)
    texts: Mapping[str, Sequence[tuple[float | None, str]]] = field(default_factory=dict)
    histograms: Mapping[str, Sequence[tuple[float, Sequence[float], Sequence[float]]]] = field(default_factory=dict)
    artifacts: Mapping[str, bytes | None] = field(default_factory=dict)
    status: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 1
