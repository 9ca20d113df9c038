"""`tracker-bridge export RUN... --format csv|parquet|jsonl`: runs as files for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import print_json, stderr, visible
from tracker_bridge.cli._runs import choose, queue_dir
from tracker_bridge.errors import UsageError
from tracker_bridge.exporters import Exported, Format, Selection, export_run, print_run
from tracker_bridge.rundir import RunPaths, load_manifest


def export(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids or paths.")],
    file_format: Annotated[Format, typer.Option("--format", "-f", help="What to write.")] = "csv",
    output: Annotated[
        Optional[Path],
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A file, a folder, or - for standard output; default: <run>.<format>.",
        ),
    ] = None,
    include: Annotated[
        Optional[list[str]], typer.Option(metavar="GLOB", help="Only such series (or `re:...`). May be repeated.")
    ] = None,
    exclude: Annotated[
        Optional[list[str]], typer.Option(metavar="GLOB", help="Not such series. May be repeated.")
    ] = None,
    group_by: Annotated[
        Optional[str], typer.Option(metavar="WHAT", help="Norms by parameter, module, block or total.")
    ] = None,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Write runs to files: the scalar series (csv, parquet) or everything (jsonl)."""
    chosen = choose(runs, queue_dir(directory, config))
    selection = Selection(include=tuple(include or ()), exclude=tuple(exclude or ()), group_by=group_by)
    try:
        if str(output) == "-":
            _print(chosen, file_format, selection)
            return
        targets = [(paths.root, _target(paths, file_format, output, len(chosen))) for paths in chosen]
        done = [export_run(root, file_format, target, selection=selection) for root, target in targets]
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    if json:
        print_json({"exported": done})
        return
    for exported in done:
        _say(exported)


def _print(chosen: list[RunPaths], file_format: Format, selection: Selection) -> None:
    if file_format == "parquet" or len(chosen) != 1:
        raise UsageError("standard output takes one run as csv or jsonl; name a file or a folder with --output")
    print_run(chosen[0].root, file_format, sys.stdout, selection=selection)


def _target(paths: RunPaths, file_format: Format, output: Path | None, count: int) -> Path:
    name = f"{load_manifest(paths).run_id}.{file_format}"
    if output is None:
        return Path(name)
    if output.is_dir():
        return output / name
    if count > 1:
        raise UsageError(f"{count} runs need a folder, and {output} is none; make it first")
    return output


def _say(exported: Exported) -> None:
    stderr().print(Text(f"{visible(exported.path)}: {exported.points:,} points"), soft_wrap=True)
    sys.stdout.write(f"{visible(exported.path)}\n")
