"""`tracker-bridge sync [RUN...]`: delivers what is pending, in a process of its own for each run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional, Union

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import plural, print_json, stderr, stdout, visible
from tracker_bridge.cli._replay import again, is_replay
from tracker_bridge.cli._runs import (
    RunSummary,
    backend_names,
    choose,
    queue_dir,
    summarise,
    summarise_all,
)
from tracker_bridge.cli._status import print_runs
from tracker_bridge.cli._waiting import OutOfPatienceError, Waiting
from tracker_bridge.config import ConfigError, restore
from tracker_bridge.delivery import Plan, plan_of, sync_run
from tracker_bridge.journal import JournalReader
from tracker_bridge.rundir import LockBusyError, NotARunError, RunPaths, load_manifest

DEFAULT_TIMEOUT = 600.0
DEFAULT_PATIENCE = 60.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one run.

    `problems`: why a backend, or the whole run, was left out. `gave_up`: why delivery was ended early.
    """

    run: Union[RunSummary, None]
    dir: str
    skipped: Union[str, None] = None
    problems: tuple[str, ...] = ()
    gave_up: Union[str, None] = None

    @property
    def complete(self) -> bool:
        """Whether nothing is left."""
        return self.run is not None and not self.problems and (self.run.live or not self.run.unfinished)


def sync(
    runs: Annotated[
        Optional[list[str]], typer.Argument(metavar="[RUN]...", help="Ids or paths; none: everything pending.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="For each run; what is then left stays pending.")
    ] = DEFAULT_TIMEOUT,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1, help="For each run; end it when for so long no backend gets anything done."
        ),
    ] = DEFAULT_PATIENCE,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Deliver what is pending.

    Secrets that were written in a configuration file are not kept with the run: give them again as environment
    variables; the error names them. Exit status 1 if something is still undelivered.
    """
    folder = queue_dir(directory, config)
    if runs:
        chosen = choose(runs, folder)
    else:
        chosen = [RunPaths(Path(run.dir)) for run in summarise_all(folder)[0] if run.unfinished]
    console = stderr()
    with _progress(console) as progress:
        outcomes = [_sync_one(paths, timeout, patience, console, progress) for paths in chosen]
    if json:
        print_json({"dir": str(folder), "runs": [_as_json(outcome) for outcome in outcomes]})
    else:
        _print(stdout(), outcomes, folder)
    if not all(outcome.complete for outcome in outcomes):
        raise typer.Exit(1)


def _sync_one(paths: RunPaths, timeout: float, patience: float, console: Console, progress: Progress | None) -> Outcome:
    try:
        before = summarise(paths)
        if before.delivering:
            return Outcome(run=before, dir=before.dir, skipped="is being delivered already")
        if not before.live and not before.unfinished:
            return Outcome(run=before, dir=before.dir, skipped="has nothing pending")
        plan, problems = _plan(paths, before)
        gave_up = None
        if plan.backends:
            waiting = _waiting(before, plan, patience, console, progress)
            try:
                sync_run(paths.root, plan=plan, timeout=timeout, on_progress=waiting)
            except OutOfPatienceError as error:
                gave_up = str(error)
        return Outcome(run=summarise(paths), dir=before.dir, problems=tuple(problems), gave_up=gave_up)
    except (NotARunError, LockBusyError, OSError) as error:
        return Outcome(run=None, dir=str(paths.root), problems=(str(error),))


def _plan(paths: RunPaths, run: RunSummary) -> tuple[Plan, list[str]]:
    """The run's own plan, less the backends that cannot be restored here, and why each of them cannot.

    The targets of replays are none of its own; one that is not done is a problem whose remedy is the replay's command.
    """
    manifest = load_manifest(paths)
    environ = dict(os.environ)
    possible: list[str] = []
    problems: list[str] = []
    unfinished = {backend.name for backend in run.backends if backend.state != "delivered"}
    for name in backend_names(manifest):
        if is_replay(name):
            if name in unfinished:
                problems.append(_how_to_go_on(paths, name))
            continue
        try:
            restore(manifest.config, environ, only=[name])
            possible.append(name)
        except ConfigError as error:
            problems.append(str(error))
    return plan_of(restore(manifest.config, environ, only=possible), environ), problems


def _how_to_go_on(paths: RunPaths, name: str) -> str:
    command = again(paths, name)
    if command is None:
        return (
            f"{name} is an unfinished replay; the same `tracker-bridge replay ... --to ...` as before goes on with it"
        )
    return f"{name} is an unfinished replay; this goes on with it: {command}"


@contextmanager
def _progress(console: Console) -> Iterator[Progress | None]:
    if not console.is_terminal:
        yield None
        return
    note = TextColumn(
        "{task.fields[note]}", "yellow", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, note, console=console, transient=True) as progress:
        yield progress


def _waiting(run: RunSummary, plan: Plan, patience: float, console: Console, progress: Progress | None) -> Waiting:
    with JournalReader(RunPaths(Path(run.dir)).journal) as reader:
        end = reader.end()
    planned = {backend.name for backend in plan.backends}
    pending = {backend.name: backend.pending for backend in run.backends if backend.name in planned}
    return Waiting(run.id, end, pending, patience, console, progress)


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "dir": outcome.dir,
        "complete": outcome.complete,
        "skipped": outcome.skipped,
        "problems": outcome.problems,
        "gave_up": outcome.gave_up,
        "run": outcome.run,
    }


def _print(console: Console, outcomes: list[Outcome], folder: Path) -> None:
    if not outcomes:
        console.print(Text(f"Nothing is pending in {visible(str(folder))}."), soft_wrap=True)
        return
    runs = [outcome.run for outcome in outcomes if outcome.run is not None]
    if runs:
        print_runs(console, runs)
    for outcome in outcomes:
        name = outcome.run.id if outcome.run else outcome.dir
        if outcome.skipped:
            console.print(Text(f"{visible(name)} {outcome.skipped}.", style="dim"), soft_wrap=True)
        if outcome.gave_up:
            console.print(Text(f"{visible(name)}: {outcome.gave_up}", style="yellow"), soft_wrap=True)
        for problem in outcome.problems:
            text = Text(visible(name), style="bold").append(": ").append(visible(problem), style="red")
            console.print(text, soft_wrap=True)
    left = sum(not outcome.complete for outcome in outcomes)
    if left:
        left_text = f"{plural(left, 'run')} of {len(outcomes)} not wholly delivered. What is left stays on disk."
        console.print(Text(left_text, style="yellow"), soft_wrap=True)
    else:
        console.print(Text("Everything is delivered.", style="green"))
