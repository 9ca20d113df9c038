"""`tracker-bridge replay RUN... --to BACKEND|CONFIG`: runs into other trackers than those they were logged to.

What a target has had is kept in the run directory under a name made from the target's configuration, so that doing it
twice sends nothing twice, and an interrupted replay goes on. `again` says with which command: `sync` cannot do it, for
a target's configuration, which may hold secrets, is not kept with the run.
"""

from __future__ import annotations

import hashlib
import json as json_module
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Union

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tracker_bridge.adapter import (
    ArtifactItem,
    HistogramItem,
    ParamsItem,
    Row,
    TagsItem,
    TextItem,
)
from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import cell, facts, make_table, number_cell, plural, print_json, stderr, stdout, visible
from tracker_bridge.cli._runs import choose, is_locked, queue_dir, summarise
from tracker_bridge.config import BackendConfig, Config, load_config, redact
from tracker_bridge.delivery import Plan, Route, Translator, plan_of, sync_run
from tracker_bridge.errors import UsageError
from tracker_bridge.journal import Entry, JournalError, JournalReader, scan
from tracker_bridge.registry import adapter_class
from tracker_bridge.rundir import (
    BackendState,
    LockBusyError,
    NotARunError,
    RunPaths,
    load_manifest,
    load_state,
    read_json,
    write_json,
)

DEFAULT_TIMEOUT = 600.0
GIVE_UP = 20.0
"""Seconds after which a replay stops if every target that is not done is down: nobody waits at a terminal for that."""
_CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


class _StandstillError(Exception):
    """Every target is either done or down."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One run in one target. `sent` and `pending` are journal records, `points` scalars of this call.

    `dropped` counts by reason what the tracker could not hold; `renamed` series whose name it did not take as it is.
    `live`: the run went on when the replay began, which sent what was there then.
    """

    run_id: str
    target: str
    adapter: str
    sent: int = 0
    points: int = 0
    pending: int = 0
    dropped: dict[str, int] = {}
    renamed: int = 0
    url: Union[str, None] = None
    live: bool = False
    error: Union[str, None] = None

    @property
    def complete(self) -> bool:
        """Whether the target has all of the run."""
        return self.error is None and self.pending == 0


def replay(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids or paths.")],
    to: Annotated[
        str, typer.Option("--to", metavar="BACKEND|CONFIG", help="A tracker, a configured backend, or a file of them.")
    ],
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="For each run; what is then left stays pending.")
    ] = DEFAULT_TIMEOUT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be sent and what does not fit.")
    ] = False,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Send runs to another tracker, with that tracker's routes and grouping.

    Twice is once: a target gets only what it has not had. Exit status 1 if something was not delivered.
    """
    target = _target(to, config)
    chosen = choose(runs, queue_dir(directory, config))
    if dry_run:
        outcomes = [_preview(paths, backend) for paths in chosen for backend in target.backends]
    else:
        with _progress(stderr()) as progress:
            for paths in chosen:
                _keep_command(paths, target, _command(paths, to, config))
            outcomes = [outcome for paths in chosen for outcome in _replay_one(paths, target, timeout, progress)]
    if json:
        print_json({"dry_run": dry_run, "runs": [{**msgspec.to_builtins(o), "complete": o.complete} for o in outcomes]})
    else:
        _print(stdout(), outcomes, dry_run=dry_run)
    if not dry_run and not all(outcome.complete for outcome in outcomes):
        raise typer.Exit(1)


class _Command(msgspec.Struct, frozen=True):
    """What was typed, with absolute paths, and where."""

    arguments: tuple[str, ...]
    cwd: str


_COMMAND = "replay.json"


def is_replay(name: str) -> bool:
    """Whether this backend of a run is the target of a replay."""
    return name.startswith("replay-")


def again(paths: RunPaths, name: str) -> str | None:
    """The shell command that goes on with a replay to `name`; None if it was not kept."""
    try:
        kept = read_json(paths.backend(name) / _COMMAND, _Command)
    except (OSError, msgspec.DecodeError):
        return None
    command = shlex.join(kept.arguments)
    return command if kept.cwd == os.getcwd() else f"cd {shlex.quote(kept.cwd)} && {command}"


def _command(paths: RunPaths, to: str, config: Path | None) -> _Command:
    target = os.path.abspath(to) if _is_file(to) else to
    more = () if config is None else ("--config", str(config.absolute()))
    return _Command(("tracker-bridge", "replay", str(paths.root), "--to", target, *more), os.getcwd())


def _keep_command(paths: RunPaths, target: Config, command: _Command) -> None:
    for backend in target.backends:
        folder = paths.backend(backend.name)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _COMMAND, command)


def _is_file(to: str) -> bool:
    return to.lower().endswith(_CONFIG_SUFFIXES)


def _target(to: str, config: Path | None) -> Config:
    """The configuration whose backends are the targets, under names that belong to them alone."""
    loaded = load_config(to) if _is_file(to) else load_config(config, backends=[to])
    if not loaded.backends:
        raise UsageError(f"{to} configures no backend, so there is nowhere to send to")
    described = redact(loaded)["backends"]
    renamed = []
    for backend in loaded.backends:
        text = json_module.dumps(described.get(backend.name, {}), sort_keys=True, default=str)
        mark = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        renamed.append(msgspec.structs.replace(backend, name=f"replay-{backend.name}-{mark}"))
    return msgspec.structs.replace(loaded, backends=tuple(renamed), references={})


def _replay_one(paths: RunPaths, target: Config, timeout: float, progress: Progress | None) -> list[Replayed]:
    run_id = load_manifest(paths).run_id
    before = {backend.name: load_state(paths, backend.name) for backend in target.backends}
    error = None
    end = 0
    live = False
    try:
        with JournalReader(paths.journal) as reader:
            end = reader.end()
        live = summarise(paths).live
        if any(is_locked(paths.replay_lock(backend.name)) for backend in target.backends):
            error = "is being replayed there already"
        else:
            # A replay carries what was found at the time; it does not judge history again.
            plan = msgspec.structs.replace(plan_of(target, dict(os.environ)), health=None, beside=True)
            sync_run(paths.root, plan=plan, timeout=timeout, on_progress=_reporter(progress, end, run_id, plan))
    except _StandstillError:
        pass  # Each target's own last error says why.
    except (NotARunError, LockBusyError, OSError, JournalError) as problem:
        error = str(problem)
    return [_outcome(paths, run_id, backend, before[backend.name], end, live, error) for backend in target.backends]


def _outcome(
    paths: RunPaths, run_id: str, backend: BackendConfig, before: BackendState, end: int, live: bool, error: str | None
) -> Replayed:
    """`end`: how many records there were when the replay began; a run that goes on has more by now."""
    state = load_state(paths, backend.name)
    identity = load_manifest(paths).backends.get(backend.name)
    pending = max(0, end - state.position.sequence)
    if pending and error is None:
        error = state.last_error or "out of time"
    return Replayed(
        run_id=run_id,
        target=backend.name,
        adapter=backend.adapter,
        sent=state.sent - before.sent,
        points=state.points - before.points,
        pending=pending,
        dropped=state.dropped,
        url=identity.url if identity else None,
        live=live,
        error=error,
    )


def _preview(paths: RunPaths, backend: BackendConfig) -> Replayed:
    """What delivery would make of everything that the target has not had."""
    run_id = load_manifest(paths).run_id
    state = load_state(paths, backend.name)
    capabilities = adapter_class(backend.adapter).capabilities
    route = backend.route
    made = Route(
        include=route.include,
        exclude=route.exclude,
        every_n_steps=route.every_n_steps,
        group_by=route.group_by,
        prefix=route.prefix,
        rename=route.rename,
    )
    translate = Translator(capabilities, made, paths.root)
    counts: Counter[str] = Counter()
    for entry in scan(paths.journal):
        if not isinstance(entry, Entry):
            continue
        already = entry.sequence < state.position.sequence
        for item in translate(entry.sequence, entry.record):
            if not already:
                counts["points"] += len(item.names) if isinstance(item, Row) else 0
                counts.update(_unfit(item, capabilities.media))
        counts["records"] += not already
    dropped = dict(translate.dropped)
    dropped.update({reason: count for reason, count in counts.items() if reason.startswith("not native: ")})
    return Replayed(
        run_id=run_id,
        target=backend.name,
        adapter=backend.adapter,
        sent=0,
        points=counts["points"],
        pending=counts["records"],
        dropped=dropped,
        renamed=len(translate.take_renamed()),
    )


def _unfit(item: Any, media: frozenset[str]) -> list[str]:
    """What the tracker has no place of its own for, so that its adapter keeps it in another form."""
    needs = {TextItem: "text", HistogramItem: "histogram", ArtifactItem: "artifact"}.get(type(item))
    if needs == "artifact" and item.media_type.startswith("image/") and "image" in media:
        needs = None
    if needs is None or isinstance(item, (Row, ParamsItem, TagsItem)) or needs in media:
        return []
    return [f"not native: {needs}"]


@contextmanager
def _progress(console: Console) -> Iterator[Progress | None]:
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress


def _reporter(
    progress: Progress | None, end: int, run_id: str, plan: Plan
) -> Callable[[dict[str, BackendState]], None]:
    tasks = {}
    if progress is not None:
        for backend in plan.backends:
            tasks[backend.name] = progress.add_task(visible(f"{run_id} > {backend.name}"), total=end)
    since: float | None = None

    def report(states: dict[str, BackendState]) -> None:
        nonlocal since
        for name, task in tasks.items():
            assert progress is not None
            progress.update(task, completed=min(end, states[name].position.sequence))
        healths = {state.health for state in states.values()}
        if "down" not in healths or not healths <= {"down", "closed"}:
            since = None
            return
        since = time.monotonic() if since is None else since
        if time.monotonic() - since > GIVE_UP:
            raise _StandstillError

    return report


def _print(console: Console, outcomes: list[Replayed], *, dry_run: bool) -> None:
    words = ("would be sent", "points") if dry_run else ("sent", "points")
    table = make_table(("run", "left"), ("target", "left"), (words[0], "right"), (words[1], "right"), ("left", "right"))
    for outcome in outcomes:
        sent = outcome.pending if dry_run else outcome.sent
        left = 0 if dry_run else outcome.pending
        table.add_row(
            cell(outcome.run_id, "bold"),
            cell(outcome.target),
            number_cell(sent),
            number_cell(outcome.points),
            number_cell(left, "yellow"),
        )
    console.print(table)
    notes: list[tuple[str, Text | str | None]] = []
    for outcome in outcomes:
        label = visible(f"{outcome.run_id} > {outcome.target}")
        if outcome.dropped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in outcome.dropped.items())
            notes.append((label, cell(f"did not fit: {reasons}", "yellow")))
        if outcome.renamed:
            notes.append((label, cell(f"{plural(outcome.renamed, 'series name')} will be changed", "yellow")))
        if outcome.live:
            notes.append((label, cell("still running; the same command sends what has come since", "dim")))
        if outcome.error:
            notes.append((label, cell(outcome.error, "red")))
        if outcome.url and not outcome.error:
            notes.append((label, cell(outcome.url)))
    if notes:
        console.print()
        console.print(facts(notes))
    if dry_run:
        console.print(Text("Nothing was sent.", style="dim"))
        return
    left = sum(not outcome.complete for outcome in outcomes)
    text = f"{plural(left, 'replay')} not complete; the same command goes on." if left else "Everything is delivered."
    console.print(Text(text, style="yellow" if left else "green"))
