"""`tracker-bridge report RUN... -o report.html`: a self-contained page, or a picture. Reads runs, writes one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import print_json, stdout, visible
from tracker_bridge.cli._runs import choose, queue_dir
from tracker_bridge.errors import UsageError
from tracker_bridge.report import diagnosis, read_story, write_picture, write_report


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids or paths; several are compared.")],
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", metavar="FILE", help="Default: report.html, or report.png.")
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="A picture instead of a page.")] = False,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Write a report of one run, or of several side by side, that opens in any browser without a network."""
    stories = [read_story(paths.root) for paths in choose(runs, queue_dir(directory, config))]
    target = output or Path("report.png" if png else "report.html")
    try:
        (write_picture if png else write_report)(stories, target)
    except OSError as error:
        raise UsageError(f"the report cannot be written to {target}: {error.strerror or error}") from error
    if json:
        print_json({"output": str(target), "runs": [diagnosis(story) for story in stories]})
    else:
        stdout().print(Text(visible(str(target))), soft_wrap=True)
