"""`tracker-bridge show RUN`: the run's gradient norms as a heatmap and a table in the terminal. Reads only."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import print_json, stdout, visible
from tracker_bridge.cli._runs import find_run, queue_dir
from tracker_bridge.report import diagnosis, heatmap, layer_table, read_story, verdict

_MOST_WIDTH = 200


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id or path of a run.")],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Lines of the map.")] = 40,
    layers: Annotated[int, typer.Option("--layers", min=0, help="Lines of the table.")] = 15,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Show the gradient norms of a run: layers by steps, and the layers with the largest norms."""
    story = read_story(find_run(run, queue_dir(directory, config)).root)
    if json:
        print_json(diagnosis(story))
        return
    console = stdout()
    console.print(Text(visible(f"{story.title}, {story.status}: {verdict(story)}"), style="bold"))
    coloured = console.color_system is not None and not console.no_color
    for model in story.models:
        if not len(model.norms):
            continue
        console.print()
        if model.name:
            console.print(Text(visible(model.name), style="bold"))
        console.print(heatmap(model, width=min(console.width, _MOST_WIDTH), rows=rows, coloured=coloured))
        if layers:
            console.print()
            console.print(layer_table(model, most=layers))
    if not any(len(model.norms) for model in story.models):
        console.print(Text("No gradient norms were recorded.", style="dim"))
