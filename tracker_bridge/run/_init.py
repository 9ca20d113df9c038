"""`init`: from configuration to a live run: directory, manifest, journal, delivery. Only misuse raises."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, TypedDict

import msgspec

from tracker_bridge.adapter import Adapter
from tracker_bridge.config import Config, hide_secrets, load_config, redact, scrub, secret_values
from tracker_bridge.delivery import plan_of
from tracker_bridge.errors import ConfigError, UsageError
from tracker_bridge.journal import Entry, JournalWriter, WhenFull, WriterBusyError, scan
from tracker_bridge.records import Metrics, NormVector, Params, RunStarted, SeriesTable, Snapshot, Step, Tags
from tracker_bridge.run import _exit
from tracker_bridge.run._channel import Channel, NoChannel, ProcessChannel, ThreadChannel
from tracker_bridge.run._plain import plain_params, plain_tags
from tracker_bridge.run._provenance import provenance
from tracker_bridge.run._ranks import current_rank
from tracker_bridge.run._result import sync_command
from tracker_bridge.run._run import Run
from tracker_bridge.run._values import LARGEST_STEP
from tracker_bridge.rundir import (
    FileLock,
    Manifest,
    NotARunError,
    RunPaths,
    keep_spare,
    load_manifest,
    load_state,
    this_process,
    update_manifest,
    write_json,
)

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class _WriterOptions(TypedDict):
    max_disk: int
    when_full: WhenFull
    delivered: Callable[[], int | None]


class _Resumed(msgspec.Struct):
    """What a continued run needs to know of its past."""

    attempt: int = 1
    last_step: Step = -1
    next_table: int = 0
    next_collector_step: int | None = None


def init(
    config: Any = None,
    *,
    project: str | None = None,
    experiment: str | None = None,
    name: str | None = None,
    run_id: str | None = None,
    tags: Any = (),
    params: Any = None,
    backends: Any = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - the public name
    resume: bool = False,
) -> Run:
    """Begin a run and return at once; trackers open in the background.

    Args:
        config: A path (YAML, TOML, JSON), a mapping, a `Config`, or None: `tracker_bridge.yaml`/`.toml` in the working
            directory, `[tool.tracker_bridge]` of `pyproject.toml`, or the default (TensorBoard).
        project: Project in the trackers that have projects.
        experiment: Experiment (MLflow) or group of runs.
        name: The run's display name.
        run_id: Unique in the queue directory: letters, digits, `.`, `_`, `-`. Made up if None. With the id of a run
            that was interrupted, that run goes on, in each tracker too.
        tags: Texts, or tag -> value.
        params: Hyper-parameters, see `Run.log_params`.
        backends: A name, names, or name -> options; replaces those of the configuration.
        dir: The queue directory, in which the run gets a directory of its own.
        resume: Continue the run `run_id`, which must be given, even if it had ended. False leaves it to the
            configuration.

    Raises:
        ConfigError: The configuration cannot be used.
        UsageError: `run_id` is not valid, belongs to a run that is still being written (by this process, too), or has
            ended.
    """
    settings = load_config(
        config,
        project=project,
        experiment=experiment,
        name=name,
        run_id=run_id,
        tags=plain_tags(tags),
        params=plain_params(params) if params is not None else {},
        backends=backends,
        dir=dir,
        resume=resume or None,
    )
    return begin(settings)


def begin(settings: Config, adapters: Mapping[str, Adapter[Any]] = MappingProxyType({})) -> Run:
    """Begin the run that `settings` describe.

    `adapters`: ready-made ones by the name of their backend in `settings`, which hold objects of this process; the
    delivery mode must be `thread` then. Raises `UsageError`, and `ConfigError` for `resume` without a `run_id`.
    """
    if settings.resume and settings.run_id is None:
        raise ConfigError(
            "true needs the run_id of the run to go on with; give it (run_id, or TRACKER_BRIDGE_RUN_ID), or leave "
            "resume out to begin a new run",
            key="resume",
        )
    rank = current_rank()
    if rank is not None and settings.ranks == "all":
        settings = _of_rank(settings, rank)
    chosen = _checked_id(settings.run_id) if settings.run_id else _new_id()
    if rank and settings.ranks == "first":
        return _silent(chosen, settings)
    opened = _open(settings, chosen)
    if opened is None:
        return _silent(chosen, settings)
    paths, journal, past = opened
    run = Run(
        chosen,
        paths=paths,
        journal=journal,
        channel=_channel(paths, settings, adapters),
        backends=tuple(backend.name for backend in settings.backends),
        gradients=settings.gradients,
        close_timeout=settings.delivery.close_timeout,
        last_step=past.last_step,
        first_table=past.next_table,
        next_collector_step=past.next_collector_step,
        secrets=secret_values(settings, dict(os.environ)),
    )
    _exit.register(run)
    return run


def _of_rank(settings: Config, rank: int) -> Config:
    """The settings of one rank's own run: told apart by its id and name, and found by the tag `rank`."""
    mark = f"-rank{rank}"

    def own(text: str) -> str:
        return text if text.endswith(mark) else text + mark

    return msgspec.structs.replace(
        settings,
        run_id=own(settings.run_id or _new_id()),
        name=own(settings.name) if settings.name else None,
        tags={**settings.tags, "rank": str(rank)},
    )


def _silent(run_id: str, settings: Config) -> Run:
    """A run with the same methods that writes nothing: on other ranks, and where no directory can be made."""
    run = Run(
        run_id,
        paths=None,
        journal=None,
        channel=NoChannel(),
        backends=(),
        gradients=settings.gradients,
        close_timeout=settings.delivery.close_timeout,
        last_step=-1,
    )
    _exit.register(run)  # other processes wait for its part in what they sum
    return run


def _open(settings: Config, run_id: str) -> tuple[RunPaths, JournalWriter, _Resumed] | None:
    """The run's directory and journal; a disk that refuses costs the run its home, never the script its life."""
    homes = (settings.queue.dir, Path(tempfile.gettempdir()) / f"tracker_bridge_runs-{os.getuid()}")
    for home in homes:
        paths = RunPaths(home / run_id)
        try:
            opened = (paths, *_begin(settings, paths, run_id))
        except WriterBusyError:
            raise UsageError(_busy(paths, run_id)) from None
        except OSError as error:
            _warn(f"no run directory can be made in {home}: {error}")
            continue
        if home != settings.queue.dir:
            command = sync_command(paths.root)
            _warn(f"run {run_id!r} is kept in {paths.root} instead; deliver what stays there with: {command}")
        return opened
    _warn("nothing is recorded: there is no place for the run directory; set queue.dir to one that can be written")
    return None


def _busy(paths: RunPaths, run_id: str) -> str:
    where = f"run {run_id!r} in {paths.root.parent} is still"
    with contextlib.suppress(NotARunError):
        if load_manifest(paths).owner == this_process():
            return (
                f"{where} open in this process; end it with its close() (tracker_bridge.current().close() for the run "
                "that was begun last), or choose another run_id"
            )
    return f"{where} being written by another process; choose another run_id"


def _begin(settings: Config, paths: RunPaths, run_id: str) -> tuple[JournalWriter, _Resumed]:
    old = load_manifest(paths) if paths.manifest.is_file() else None
    if old is not None:
        _check_resume(old, settings, paths)
    paths.backends.mkdir(parents=True, exist_ok=True)
    options: _WriterOptions = {
        "max_disk": settings.queue.max_disk,
        "when_full": settings.queue.when_full,
        "delivered": lambda: _delivered(paths, settings),
    }
    if old is not None:
        # A number that a backend has seen is never given to another record, whatever a power cut has taken away.
        seen = max((load_state(paths, folder.name).position.sequence for folder in paths.backends.iterdir()), default=0)
        journal = JournalWriter.recover(paths.journal, run_id, first_sequence=seen, **options)
    else:
        journal = JournalWriter.create(paths.journal, run_id, **options)
    past = _past(paths, old) if old is not None else _Resumed()
    secrets = secret_values(settings, dict(os.environ))
    found = provenance(lambda text: scrub(text, secrets))
    manifest = Manifest(
        run_id=run_id,
        project=settings.project,
        experiment=settings.experiment,
        name=settings.name,
        attempt=past.attempt,
        created_ns=time.time_ns(),
        owner=this_process(),
        config=redact(settings),
        provenance=found,
    )
    if old is not None:
        update_manifest(paths, lambda now: _continued(now, manifest))
    else:
        with FileLock(paths.manifest_lock):  # which makes its file, while there is room for one
            write_json(paths.manifest, manifest)
    with contextlib.suppress(OSError):
        keep_spare(paths.manifest)
    owner = this_process()
    journal.append(RunStarted(time.time_ns(), run_id, past.attempt, owner.pid, owner.host, found))
    if settings.params:
        journal.append(Params(time.time_ns(), hide_secrets(settings.params, secrets)))
    if settings.tags:
        journal.append(Tags(time.time_ns(), settings.tags))
    return journal, past


def _check_resume(manifest: Manifest, settings: Config, paths: RunPaths) -> None:
    running = manifest.status == "running" and manifest.owner is not None and manifest.owner.is_alive()
    if running and manifest.owner != this_process():
        raise UsageError(
            f"run {manifest.run_id!r} in {paths.root.parent} is still being written by process "
            f"{manifest.owner.pid if manifest.owner else '?'}; choose another run_id"
        )
    if manifest.status == "finished" and not settings.resume:
        raise UsageError(
            f"run {manifest.run_id!r} in {paths.root.parent} has finished; pass resume=True to continue it, "
            "or choose another run_id"
        )


def _past(paths: RunPaths, manifest: Manifest) -> _Resumed:
    past = _Resumed(attempt=manifest.attempt + 1)
    gradient_tables: set[int] = set()
    for entry in scan(paths.journal):
        if not isinstance(entry, Entry):
            continue
        record = entry.record
        if isinstance(record, RunStarted):
            past.attempt = max(past.attempt, record.attempt + 1)
        elif isinstance(record, Metrics):
            past.last_step = record.step
        elif isinstance(record, NormVector):
            if record.table in gradient_tables:
                past.next_collector_step = min(int(record.step) + 1, LARGEST_STEP)
        else:
            for table in record.tables if isinstance(record, Snapshot) else (record,):
                if isinstance(table, SeriesTable):
                    past.next_table = max(past.next_table, table.table + 1)
                    if table.kind.startswith("gradients"):
                        gradient_tables.add(table.table)
    return past


def _continued(old: Manifest, new: Manifest) -> Manifest:
    return msgspec.structs.replace(
        new,
        created_ns=old.created_ns,
        backends=old.backends,
        not_written=old.not_written,
        project=new.project or old.project,
        experiment=new.experiment or old.experiment,
        name=new.name or old.name,
    )


def _delivered(paths: RunPaths, settings: Config) -> int | None:
    """The sequence that every backend has reached."""
    if not settings.backends:
        return None
    return min(load_state(paths, backend.name).position.sequence for backend in settings.backends)


def _channel(paths: RunPaths, settings: Config, adapters: Mapping[str, Adapter[Any]]) -> Channel:
    if not settings.backends:
        return NoChannel()
    plan = plan_of(settings, dict(os.environ))
    try:
        if settings.delivery.mode == "thread":
            return ThreadChannel(paths, plan, adapters)
        return ProcessChannel(paths, plan, settings.cwd)
    except OSError as error:
        _warn(f"delivery could not be started: {error}; deliver later with: {sync_command(paths.root)}")
        return NoChannel()


def _checked_id(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"run_id {run_id!r} must be 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
    return run_id


def _new_id() -> str:
    # Not from the `random` module: making a run must not disturb a script's seed, nor collide under equal seeds.
    return f"{dt.datetime.now():%Y%m%d-%H%M%S}-{token_hex(3)}"


def _warn(text: str) -> None:
    print(f"tracker_bridge: {text}", file=sys.stderr)
