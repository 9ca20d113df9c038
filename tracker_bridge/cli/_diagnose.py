"""`tracker-bridge diagnose RUN`: the story of a run in a page. Reads only."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import print_json, stdout, visible
from tracker_bridge.cli._runs import find_run, queue_dir
from tracker_bridge.report import diagnosis, read_story, story_lines

_TONES = {
    "title": "bold",
    "plain": "",
    "dim": "dim",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
    "ok": "green",
    "advice": "green",
}


def diagnose(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id or path of a run.")],
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Tell what went wrong in a run: when, where, what kind, what changed just before, what to try.

    Exit status 1 if there was trouble (an alert that is not mere information).
    """
    story = read_story(find_run(run, queue_dir(directory, config)).root)
    if json:
        print_json(diagnosis(story))
    else:
        console = stdout()
        for line in story_lines(story):
            text = Text(visible(line.text), style=_TONES[line.tone])
            for row in text.wrap(console, max(20, console.width - 2 * line.indent)):
                row.rstrip()  # or what is pasted into a chat is full of blanks
                row.pad_left(2 * line.indent if row.plain else 0)
                console.print(row, soft_wrap=True)
    if any(alert.severity != "info" for alert in story.alerts):
        raise typer.Exit(1)
