"""`tracker-bridge import KIND PATH`: runs that other trackers left behind, into run directories of the bridge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import cell, facts, make_table, plural, print_json, stderr, stdout, visible
from tracker_bridge.cli._runs import queue_dir
from tracker_bridge.errors import UsageError
from tracker_bridge.importers import KINDS, ForeignRun, ImportReport, Outcome, discover, import_tree

_SHOWN = 20


def import_runs(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of: {', '.join(KINDS)}.")],
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A file, a folder with any number of runs, or MLflow's tracking URI.")
    ],
    workers: Annotated[
        Optional[int], typer.Option(metavar="N", min=1, help="Processes (default: the cores, 4 at most).")
    ] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Of damaged files import what is sound, instead of refusing the run.")
    ] = False,
    files_under: Annotated[
        Optional[list[Path]],
        typer.Option(metavar="DIR", help="Also copy files that a run names from here. May be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Import runs of another tracker; nothing of that tracker needs to be installed.

    A run that is imported already is skipped, so an interrupted import can be repeated. Exit status 1 if a run failed.
    """
    folder = queue_dir(directory, config)
    try:
        if dry_run:
            _list(list(discover(kind, path)), json)
            return
        with _counting(stderr()) as on_progress:
            report = import_tree(
                kind,
                path,
                folder,
                workers=workers,
                salvage=salvage,
                file_roots=tuple(files_under or ()),
                on_progress=on_progress,
            )
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(str(error)) from error
    if json:
        print_json({"dir": str(folder), **_as_json(report)})
    else:
        _print(stdout(), report, folder)
    if report.failed:
        raise typer.Exit(1)


@contextmanager
def _counting(console: Console) -> Iterator[Callable[[Outcome], None] | None]:
    """Counts while it goes on: how many runs there are is only known at the end."""
    if not console.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    counts: Counter[str] = Counter()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("looking for runs", total=None)

        def report(outcome: Outcome) -> None:
            counts[outcome.result] += 1
            progress.update(task, description=", ".join(f"{count:,} {word}" for word, count in counts.items()))

        yield report


def _list(runs: list[ForeignRun], json: bool) -> None:
    if json:
        print_json({"runs": [{"run_id": run.run_id, "name": run.name, "source": run.source} for run in runs]})
        return
    console = stdout()
    table = make_table(("run", "left"), ("name", "left"), ("source", "left"))
    for run in runs[:_SHOWN]:
        table.add_row(cell(run.run_id, "bold"), cell(run.name), cell(run.source))
    console.print(table)
    if len(runs) > _SHOWN:
        console.print(Text(f"and {len(runs) - _SHOWN:,} more", style="dim"))
    console.print(Text(f"{plural(len(runs), 'run')} found."))


def _as_json(report: ImportReport) -> dict[str, object]:
    return {
        "imported": report.imported,
        "skipped": report.skipped,
        "failed": report.failed,
        "left_out": report.left_out,
    }


def _print(console: Console, report: ImportReport, folder: Path) -> None:
    if report.imported:
        table = make_table(("imported", "left"), ("name", "left"), ("records", "right"), ("points", "right"))
        for outcome in report.imported[:_SHOWN]:
            table.add_row(
                cell(outcome.run_id, "bold"), cell(outcome.name), f"{outcome.records:,}", f"{outcome.points:,}"
            )
        console.print(table)
        if len(report.imported) > _SHOWN:
            console.print(Text(f"and {len(report.imported) - _SHOWN:,} more", style="dim"))
    reasons = Counter(outcome.why or "" for outcome in report.skipped)
    for reason, count in reasons.most_common(_SHOWN):
        console.print(Text(f"{plural(count, 'run')}: {visible(reason)}", style="dim"), soft_wrap=True)
    for outcome in report.failed:
        text = Text(visible(outcome.source), style="bold").append(": ").append(visible(outcome.why or ""), style="red")
        console.print(text, soft_wrap=True)
    damaged = [outcome for outcome in report.imported if outcome.damage]
    for outcome in damaged[:_SHOWN]:
        text = Text(visible(outcome.run_id), style="bold").append(": passed over ")
        console.print(text.append(visible("; ".join(outcome.damage[:3])), style="yellow"), soft_wrap=True)
    if report.left_out:
        console.print(Text("left out:", style="yellow"))
        console.print(facts([(f"  {count:,}", reason) for reason, count in report.left_out.items()]))
    counts = {"imported": report.imported, "skipped": report.skipped, "failed": report.failed}
    console.print(Text(", ".join(f"{len(outcomes):,} {word}" for word, outcomes in counts.items()) + f" into {folder}"))
    if not (report.imported or report.skipped or report.failed):
        console.print(Text("Nothing of this kind was found.", style="yellow"))
