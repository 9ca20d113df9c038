"""Runs as the commands see them: found by id or path, and summed up from their files. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Union

import msgspec

from tracker_bridge.config import locate_queue
from tracker_bridge.delivery import pending_records
from tracker_bridge.errors import UsageError, did_you_mean
from tracker_bridge.journal import Gap, JournalError, scan
from tracker_bridge.rundir import (
    BackendState,
    FileLock,
    LockBusyError,
    Manifest,
    NotARunError,
    RunPaths,
    find_runs,
    load_manifest,
    load_state,
)

State = Literal["opening", "healthy", "retrying", "down", "waiting", "delivered", "unreadable"]


class BackendSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One backend of a run. Counts are journal records, `points` scalars; times are nanoseconds since the epoch.

    `state`: `opening`, `healthy`, `retrying`, `down` while somebody delivers; else `delivered` if nothing is left, or
    `waiting` for `tracker-bridge sync`. `unreadable`: the journal cannot be read, `last_error` says why.
    """

    name: str
    adapter: str
    state: State
    sent: int
    points: int
    pending: int
    dropped: dict[str, int]
    last_error: Union[str, None]
    last_error_ns: Union[int, None]
    url: Union[str, None]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `live`: its training process runs. `delivering`: somebody is draining its journal.

    `not_written`: records that never reached the journal, by reason.
    """

    id: str
    dir: str
    project: Union[str, None]
    experiment: Union[str, None]
    name: Union[str, None]
    status: str
    live: bool
    delivering: bool
    attempt: int
    created_ns: int
    finished_ns: Union[int, None]
    backends: tuple[BackendSummary, ...]
    notices: tuple[str, ...] = ()
    not_written: dict[str, int] = {}
    lost: tuple[str, ...] = ()
    """A sentence for each gap in the journal; empty where nobody looked, for that reads all of it."""

    @property
    def pending(self) -> int:
        """Records that some backend has not had."""
        return sum(backend.pending for backend in self.backends)

    @property
    def unfinished(self) -> bool:
        """Whether `sync` has something to do: it is not live, and a backend has not had all of it."""
        return not self.live and any(backend.state != "delivered" for backend in self.backends)


def queue_dir(directory: Path | None, config: Path | None) -> Path:
    """The folder of the runs: as given, or as configured. Raises `ConfigError`."""
    return directory.absolute() if directory is not None else locate_queue(config)


def find_run(name: str, folder: Path) -> RunPaths:
    """The run at the path `name`, or with that id in `folder`. Raises `UsageError` naming the nearest one."""
    for root in (Path(name), folder / name):
        if (root / "run.json").is_file():
            return RunPaths(root.absolute())
    by_id = {_run_id(paths): paths for paths in find_runs(folder)}
    if name in by_id:
        return by_id[name]
    known = sorted({*by_id, *(paths.root.name for paths in by_id.values())})
    hint = did_you_mean(name, known, at_least=0.5)
    raise UsageError(f"there is no run {name!r}, neither at this path nor in {folder}{hint}")


def _run_id(paths: RunPaths) -> str:
    try:
        return load_manifest(paths).run_id
    except NotARunError:
        return paths.root.name


def summarise(paths: RunPaths) -> RunSummary:
    """The run's state now. Raises `NotARunError`."""
    manifest = load_manifest(paths)
    running = manifest.status == "running"
    live = running and manifest.owner is not None and manifest.owner.is_alive()
    delivering = is_locked(paths.delivery_lock)
    return RunSummary(
        id=manifest.run_id,
        dir=str(paths.root),
        project=manifest.project,
        experiment=manifest.experiment,
        name=manifest.name,
        status="crashed" if running and not live else manifest.status,
        live=live,
        delivering=delivering,
        attempt=manifest.attempt,
        created_ns=manifest.created_ns,
        finished_ns=manifest.finished_ns,
        backends=tuple(
            _backend(paths, manifest, name, live=live, delivering=delivering) for name in backend_names(manifest)
        ),
        notices=_notices(paths),
        not_written=manifest.not_written,
    )


def with_losses(run: RunSummary) -> RunSummary:
    """The same run, with what its journal has lost: the whole of it is read for that."""
    from tracker_bridge.reader import gap_text

    lost: list[str] = []
    try:
        lost = [gap_text(item) for item in scan(RunPaths(Path(run.dir)).journal) if isinstance(item, Gap)]
    except (OSError, JournalError) as error:
        lost = [str(error)]
    return msgspec.structs.replace(run, lost=tuple(lost))


def summarise_all(folder: Path) -> tuple[list[RunSummary], list[str]]:
    """Every run in `folder`, oldest first, and a sentence for each that cannot be read."""
    summaries: list[RunSummary] = []
    problems: list[str] = []
    for paths in find_runs(folder):
        try:
            summaries.append(summarise(paths))
        except NotARunError as error:
            problems.append(str(error))
    return sorted(summaries, key=lambda run: (run.created_ns, run.id)), problems


def backend_names(manifest: Manifest) -> list[str]:
    """The configured backends, then those that were added later."""
    configured = manifest.config.get("backends")
    names = list(configured) if isinstance(configured, dict) else []
    return [*names, *(name for name in manifest.backends if name not in names)]


def _backend(paths: RunPaths, manifest: Manifest, name: str, *, live: bool, delivering: bool) -> BackendSummary:
    stored = load_state(paths, name)
    configured = manifest.config.get("backends", {})
    options = configured.get(name) if isinstance(configured, dict) else None
    identity = manifest.backends.get(name)
    adapter = identity.adapter if identity else (options or {}).get("adapter", name)
    problem: str | None = None
    pending = 0
    try:
        pending = pending_records(paths, stored)
    except (OSError, JournalError) as error:
        problem = str(error)
    told = stored.closed_attempt >= manifest.attempt
    return BackendSummary(
        name=name,
        adapter=adapter,
        state="unreadable" if problem else _state(stored, pending=pending, told=told, live=live, delivering=delivering),
        sent=stored.sent,
        points=stored.points,
        pending=pending,
        dropped=stored.dropped,
        last_error=problem or stored.last_error,
        last_error_ns=stored.last_error_ns,
        url=identity.url if identity else None,
    )


def _state(stored: BackendState, *, pending: int, told: bool, live: bool, delivering: bool) -> State:
    if told and not pending and not live:
        return "delivered"
    if (live or delivering) and stored.health != "closed":
        return stored.health
    return "waiting"


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock at `path` now."""
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except LockBusyError:
        return True
    except OSError:
        return False
    lock.release()
    return False


def _notices(paths: RunPaths) -> tuple[str, ...]:
    try:
        text = paths.notices.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())


def choose(names: Sequence[str], folder: Path) -> list[RunPaths]:
    """The named runs, each once."""
    return list(dict.fromkeys(find_run(name, folder) for name in names))
