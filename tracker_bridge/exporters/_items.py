"""What a run's journal holds, expanded: norm vectors as series with their names, everything else as it was logged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_bridge.adapter import Capabilities, Item, NameRule, ParamRule, Row
from tracker_bridge.delivery import Route, Translator
from tracker_bridge.journal import Entry, scan
from tracker_bridge.rundir import RunPaths

# A file can hold whatever the journal can: any name, fraction and value.
_EVERYTHING = Capabilities(
    step_type="float",
    names=NameRule(allowed=r"[^\ud800-\udfff]"),
    params=ParamRule(separator=None, typed=True),
    media=frozenset({"text", "histogram", "artifact", "image"}),
)
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which series go out, and how norms are grouped.

    `include`/`exclude` are globs or `re:` expressions on names, as in a route; `group_by` is `parameter`, `module`,
    `block` or `total` (None: as the script grouped them, else by parameter).
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    group_by: str | None = None


@dataclass(slots=True)
class Points:
    """A block of points as columns [N]: index into `names`, step, nanoseconds since the epoch, value."""

    names: list[str]
    codes: npt.NDArray[np.int32]
    steps: list[int | float]
    times: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


@dataclass(slots=True)
class _Block:
    codes: list[npt.NDArray[np.int32]] = field(default_factory=list)
    steps: list[int | float] = field(default_factory=list)
    times: list[npt.NDArray[np.int64]] = field(default_factory=list)
    values: list[npt.NDArray[np.float64]] = field(default_factory=list)


def items(paths: RunPaths, selection: Selection) -> Iterator[Item]:
    """Every item of the run in the order in which it was logged. Raises `OSError`, `JournalError`."""
    route = Route(tuple(selection.include), tuple(selection.exclude), group_by=selection.group_by)
    translate = Translator(_EVERYTHING, route, paths.root)
    for item in scan(paths.journal):
        if isinstance(item, Entry):
            yield from translate(item.sequence, item.record)


def points(paths: RunPaths, selection: Selection) -> Iterator[Points]:
    """The scalar points in blocks. `names` grows from block to block and is the same list."""
    names: list[str] = []
    ids: dict[str, int] = {}
    coded: dict[int, tuple[tuple[str, ...], npt.NDArray[np.int32]]] = {}
    block = _Block()
    for item in items(paths, selection):
        if not isinstance(item, Row):
            continue
        known = coded.get(id(item.names))
        if known is None or known[0] is not item.names:
            if len(coded) >= _CHUNK:
                coded.clear()
            codes = np.array([_number(ids, names, name) for name in item.names], dtype=np.int32)
            known = coded[id(item.names)] = (item.names, codes)
        count = len(item.names)
        block.codes.append(known[1])
        block.steps += [item.step] * count
        block.times.append(np.full(count, item.time_ns, dtype=np.int64))
        block.values.append(item.values)
        if len(block.steps) >= _CHUNK:
            yield _closed(names, block)
            block = _Block()
    if block.steps:
        yield _closed(names, block)


def fractional(paths: RunPaths, selection: Selection) -> bool:
    """Whether some step is no whole number."""
    return any(isinstance(item, Row) and isinstance(item.step, float) for item in items(paths, selection))


def run_paths(run: Any) -> RunPaths:
    """The paths of a `RunReader` or of a run directory."""
    return RunPaths(Path(getattr(run, "dir", run)))


def _number(ids: dict[str, int], names: list[str], name: str) -> int:
    number = ids.setdefault(name, len(names))
    if number == len(names):
        names.append(name)
    return number


def _closed(names: list[str], block: _Block) -> Points:
    joined = np.concatenate
    return Points(names, joined(block.codes), block.steps, joined(block.times), joined(block.values))
