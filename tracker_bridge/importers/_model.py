"""What every importer speaks: a foreign run, what was wrong with it, and what could not be carried over."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracker_bridge.errors import BridgeError
from tracker_bridge.records import Record

_SLUG = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Damage:
    """A place in a foreign file that is not as its format demands. `where` says which place, in words."""

    path: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason} ({self.where})" if self.where else f"{self.path}: {self.reason}"


class ForeignFormatError(BridgeError):
    """A foreign file is not what it should be. Names the file, the place and the reason."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage

    def __reduce__(self) -> tuple[type[ForeignFormatError], tuple[Damage]]:
        return type(self), (self.damage,)


def refuse(damage: Damage) -> None:
    """The strict answer to damage: raise `ForeignFormatError`."""
    raise ForeignFormatError(damage)


@dataclass(slots=True)
class Reading:
    """What is met while one run is read.

    `on_damage` is called at each damaged place; if it returns, reading goes on behind that place as well as it can
    (`refuse` raises instead). `left_out` counts by reason what the records cannot hold. `scratch` is a folder
    for files that have to be fetched first, to be made by whoever puts the first one there; without it they are left
    out.
    """

    on_damage: Callable[[Damage], None] = refuse
    left_out: Counter[str] = field(default_factory=Counter)
    scratch: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRun:
    """A run in a foreign format, found but not read yet. Plain data: it can be sent to another process.

    `identity` is what makes it the same run when it is found again (also elsewhere on disk, where the format allows
    that); `run_id` follows from it. `paths` are the files it is read from, in order (or a store's address and the
    run's id in it). `fingerprint` changes when the source changes. `root` is the path that was given to `discover`:
    files outside of it (and of `file_roots`) are never read on a foreign file's word.
    """

    kind: str
    paths: tuple[str, ...]
    identity: tuple[str, ...]
    fingerprint: str = ""
    root: str = ""
    project: str | None = None
    experiment: str | None = None
    name: str | None = None
    file_roots: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The id under which the bridge keeps this run: readable, and the same each time."""
        digest = hashlib.blake2b("\0".join((self.kind, *self.identity)).encode("utf-8", "surrogatepass"), digest_size=6)
        label = _SLUG.sub("-", self.identity[-1]).strip("-.")[:48] or "run"
        return f"{self.kind}-{label}-{digest.hexdigest()}"

    @property
    def source(self) -> str:
        """Where the run lies, for people."""
        return self.paths[0]

    def records(self, reading: Reading | None = None) -> Iterator[Record]:
        """The run as records, from its `RunStarted` to its `RunFinished`, in the order in which they were logged.

        Streams: memory does not grow with the input. Raises `ForeignFormatError` (unless `reading.on_damage` does
        not) and `OSError`.
        """
        from tracker_bridge.importers._registry import reader

        return reader(self.kind)(self, Reading() if reading is None else reading)


def fingerprint_of(paths: list[Path]) -> str:
    """A text that changes when one of the files grows or is replaced: sizes and modification times.

    One that cannot be had (a dangling link) fails its run when that is read, not the search for others.
    """
    parts = []
    for path in paths:
        try:
            found = path.stat()
            parts.append(f"{path.name}:{found.st_size}:{found.st_mtime_ns}")
        except OSError as error:
            parts.append(f"{path.name}:{error.errno}")
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
