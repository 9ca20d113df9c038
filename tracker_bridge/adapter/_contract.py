"""The class that every adapter subclasses, and what it is told about the run."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from tracker_bridge.adapter._capabilities import Capabilities
from tracker_bridge.adapter._items import Batch


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of an adapter's options: its config keys, with the names of the tracker's own SDK, typed, with defaults."""


OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True, slots=True)
class Requirement:
    """An importable module that the adapter needs when it opens, and what installs it."""

    module: str
    install: str
    """What pip takes, e.g. `tracker-bridge[wandb]`."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run as an adapter sees it at `open`. `params` and `tags` are the latest known.

    `ids` is what this backend's `open` returned before (empty the first time): with it, the adapter continues its
    own run. `cwd` is the script's working directory, to which relative paths in options belong. `dir` is the run
    directory; `private_dir` is this backend's own folder in it (it exists). `provenance` describes the training
    script (never the delivery process): script, arguments, cwd, git_commit, git_branch, git_remote, host, user,
    python, platform, where known. `first_of_kind`: no other backend of this run with the same adapter came before this
    one; see `own_id`.
    """

    run_id: str
    backend: str
    project: str | None
    experiment: str | None
    name: str | None
    dir: Path
    private_dir: Path
    attempt: int = 1
    started_ns: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str | None] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    first_of_kind: bool = True

    @property
    def own_id(self) -> str:
        """`run_id` for the first of a kind, `<run_id>-<backend>` for the others: no two backends have the same.

        For trackers in which two backends with one id (or file) would write into the same place.
        """
        return self.run_id if self.first_of_kind else f"{self.run_id}-{self.backend}"


@dataclass(frozen=True, slots=True)
class Opened:
    """What `open` made: the tracker's own identifiers (kept in run.json, given back on resume) and where to look."""

    ids: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None


class Adapter(abc.ABC, Generic[OptionsT]):
    """Speaks to one tracker, for one run, from one thread.

    The constructor does no I/O and imports no SDK; `open` does both. Every method may raise `RetryLater` (it is called
    again after a wait, and must then start afresh without leaving a second run behind) or `Rejected` (`write` only).
    Any other exception is contained, counted and reported, and treated like `RetryLater` a few times.
    """

    options_type: ClassVar[type[Options]]
    """The config keys; `Options` subclass."""
    capabilities: ClassVar[Capabilities]
    requires: ClassVar[tuple[Requirement, ...]] = ()

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abc.abstractmethod
    def open(self, run: RunInfo) -> Opened:
        """Create the tracker's run, or continue the one in `run.ids`. Called before the first `write`."""

    @abc.abstractmethod
    def write(self, batch: Batch) -> None:
        """Hand the batch to the tracker, on its bulk path. Returns when the tracker (or its SDK) has it."""

    def server(self) -> str | None:
        """The URL of the server that `open` will speak to, None if there is none. Does no I/O and imports no SDK.

        `tracker-bridge doctor` tries to reach it.
        """
        return None

    def refused(self) -> Mapping[str, int]:
        """Values that the tracker refused after `write` had handed them over, by reason, counted since `open`.

        For SDKs that learn of a refusal later; they appear among the backend's drops.
        """
        return {}

    def flush(self) -> None:
        """Make what was written durable in the tracker as far as it can; the cursor moves after this returns."""

    @abc.abstractmethod
    def close(self, status: str | None) -> None:
        """End the tracker's run as `finished`, `failed`, `killed` or `crashed`; None: leave it open (more follows)."""
