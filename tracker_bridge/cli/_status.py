"""`tracker-bridge status [RUN]`: what each backend has had, what is left, what went wrong. Changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import (
    Column,
    ago,
    cell,
    facts,
    make_table,
    number_cell,
    plural,
    print_error,
    print_json,
    state_cell,
    stdout,
    visible,
)
from tracker_bridge.cli._runs import (
    BackendSummary,
    RunSummary,
    find_run,
    queue_dir,
    summarise,
    summarise_all,
    with_losses,
)

_NOTICES_SHOWN = 10
_LOST_SHOWN = 5


def status(
    run: Annotated[Optional[str], typer.Argument(metavar="[RUN]", help="Id or path of a run; none: all runs.")] = None,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Show what each backend has had, what is left, and what went wrong.

    Exit status 1 if a run that has ended is not wholly delivered.
    """
    folder = queue_dir(directory, config)
    problems: list[str] = []
    if run is not None:
        runs = [with_losses(summarise(find_run(run, folder)))]
    else:
        runs, problems = summarise_all(folder)
    if json:
        print_json({"dir": str(folder), "runs": runs, "unreadable": problems})
    else:
        if run is not None:
            _print_one(stdout(), runs[0], directory)
        else:
            _print_all(stdout(), runs, folder, directory)
        for problem in problems:
            print_error(problem)
    if problems or any(summary.unfinished for summary in runs):
        raise typer.Exit(1)


def _print_all(console: Console, runs: list[RunSummary], folder: Path, directory: Path | None) -> None:
    if not runs:
        console.print(Text(f"No runs in {visible(str(folder))}."), soft_wrap=True)
        return
    print_runs(console, runs)
    console.print(_verdict(runs, "", directory), soft_wrap=True)


def print_runs(console: Console, runs: list[RunSummary]) -> None:
    """A table of the runs' backends, and what was dropped and went wrong below it, where it has room."""
    table = make_table(("run", "left"), ("status", "left"), *_BACKEND_COLUMNS)
    for run in runs:
        lead = (cell(_title(run), "bold"), state_cell(run.status))
        for backend in run.backends:
            table.add_row(*lead, *_backend_cells(backend))
            lead = (Text(), Text())
        if not run.backends:
            table.add_row(*lead, Text("no backends", style="dim"))
    console.print(table)
    lost = [(visible(run.id), _lost(run)) for run in runs if run.not_written]
    if lost:
        console.print()
        console.print(facts(lost))
    _print_troubles(console, [(f"{run.id} > {backend.name}", backend) for run in runs for backend in run.backends])


def _print_one(console: Console, run: RunSummary, directory: Path | None) -> None:
    ended = ago(run.finished_ns)
    state = state_cell(run.status)
    state.append(f", started {ago(run.created_ns)}" + (f", ended {ended}" if ended else ""), style="default")
    if run.attempt > 1:
        state.append(f", attempt {run.attempt}", style="default")
    console.print(
        facts(
            [
                ("run", cell(run.id, "bold")),
                ("name", run.name),
                ("project", run.project),
                ("experiment", run.experiment),
                ("status", state),
                ("folder", run.dir),
                ("lost", _lost(run)),
            ]
        )
    )
    console.print()
    table = make_table(*_BACKEND_COLUMNS)
    for backend in run.backends:
        table.add_row(*_backend_cells(backend))
    console.print(table)
    _print_troubles(console, [(backend.name, backend) for backend in run.backends])
    places = [(backend.name, backend.url) for backend in run.backends if backend.url]
    if places:
        console.print()
        console.print(facts(places))
    if run.lost:
        console.print()
        for line in run.lost[:_LOST_SHOWN]:
            console.print(Text(f"  {visible(line)}", style="yellow"), soft_wrap=True)
        if len(run.lost) > _LOST_SHOWN:
            console.print(Text(f"  and more in {plural(len(run.lost) - _LOST_SHOWN, 'place')}", style="yellow"))
    if run.notices:
        console.print()
        for line in run.notices[-_NOTICES_SHOWN:]:
            console.print(Text(f"  {visible(line)}", style="yellow"), soft_wrap=True)
    console.print()
    console.print(_verdict([run], run.id, directory), soft_wrap=True)


def _lost(run: RunSummary) -> Text | None:
    if not run.not_written:
        return None
    return cell(f"never written to disk: {_counts(run.not_written)}", "yellow")


def _counts(by_reason: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in by_reason.items())


_BACKEND_COLUMNS: tuple[Column, ...] = (
    ("backend", "left"),
    ("state", "left"),
    ("sent", "right"),
    ("pending", "right"),
    ("dropped", "right"),
)


def _backend_cells(backend: BackendSummary) -> tuple[Text, ...]:
    return (
        cell(backend.name),
        state_cell(backend.state),
        number_cell(backend.sent),
        number_cell(backend.pending, "yellow"),
        number_cell(sum(backend.dropped.values()), "yellow"),
    )


def _print_troubles(console: Console, backends: list[tuple[str, BackendSummary]]) -> None:
    lines: list[tuple[str, Text | str | None]] = []
    for label, backend in backends:
        if backend.dropped:
            lines.append((visible(label), cell(f"dropped: {_counts(backend.dropped)}", "yellow")))
        if backend.last_error:
            when = ago(backend.last_error_ns)
            text = Text(f"last error{f', {when}' if when else ''}: ", style="dim")
            lines.append((visible(label), text.append(visible(backend.last_error), style="not dim")))
    if lines:
        console.print()
        console.print(facts(lines))
        console.print()


def _title(run: RunSummary) -> str:
    return run.id if run.name in (None, run.id) else f"{run.id} ({run.name})"


def _verdict(runs: list[RunSummary], named: str, directory: Path | None) -> Text:
    unfinished = [run for run in runs if run.unfinished]
    live = sum(run.live for run in runs)
    if not unfinished:
        if live:
            return Text(f"Nothing to do; {plural(live, 'run')} still going.", style="green")
        return Text("Everything is delivered.", style="green")
    records = sum(run.pending for run in unfinished)
    text = Text(f"{plural(len(unfinished), 'run')} not wholly delivered", style="yellow")
    text.append(f" ({plural(records, 'record')} pending). Deliver with: ", style="default")
    where = ["--dir", str(directory)] if directory is not None else []
    words = ["tracker-bridge", "sync", *([named] if named else []), *where]
    return text.append(visible(shlex.join(words)), style="bold")
