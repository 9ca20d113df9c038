"""`run.json`: who the run is, how it was configured (without secrets), where it went and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Union

import msgspec

from tracker_bridge.rundir._files import FileLock, read_json, spare_for, write_json
from tracker_bridge.rundir._paths import RunPaths
from tracker_bridge.rundir._process import Owner

MANIFEST_FORMAT = 1

Status = Literal["running", "finished", "failed", "killed", "crashed"]


class NotARunError(Exception):
    """The directory holds no readable run."""


class BackendIdentity(msgspec.Struct, frozen=True):
    """A backend's run in its tracker: the ids that `open` returned, and where to look at it."""

    adapter: str
    ids: dict[str, str] = {}
    url: Union[str, None] = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `run.json`. `config` is the configuration with every secret replaced.

    `not_written` counts the records of all attempts that never reached the journal, by reason.
    """

    format: int = MANIFEST_FORMAT
    run_id: str
    project: Union[str, None] = None
    experiment: Union[str, None] = None
    name: Union[str, None] = None
    status: Status = "running"
    attempt: int = 1
    created_ns: int
    finished_ns: Union[int, None] = None
    owner: Union[Owner, None] = None
    config: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    backends: dict[str, BackendIdentity] = {}
    not_written: dict[str, int] = {}


def load_manifest(paths: RunPaths) -> Manifest:
    """The run's manifest. Raises `NotARunError` naming the directory and the reason."""
    try:
        manifest = read_json(paths.manifest, Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise NotARunError(f"{paths.root} is not a tracker_bridge run directory: {error}") from error
    if manifest.format > MANIFEST_FORMAT:
        raise NotARunError(
            f"{paths.root} was written by a newer tracker_bridge (format {manifest.format}, this one reads up to "
            f"{MANIFEST_FORMAT}); upgrade with: pip install -U tracker-bridge"
        )
    return manifest


def update_manifest(paths: RunPaths, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Read, change and replace the manifest under its lock; returns the new one. A run that has ended has no spare."""
    with FileLock(paths.manifest_lock):
        manifest = change(load_manifest(paths))
        write_json(paths.manifest, manifest)
        if manifest.status != "running":
            spare_for(paths.manifest).unlink(missing_ok=True)
    return manifest
