"""`tracker-bridge run [--config C] script.py args...`: an unmodified script whose trackers are the configured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from tracker_bridge.launch import TRACKERS, launch

SETTINGS: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What the command needs of its parser: everything from the script's name on belongs to the script."""


def run(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="As after `python`: script.py, -m module, -c code, or -."),
    ],
    config: Annotated[
        Optional[Path],
        typer.Option("--config", metavar="FILE", help="Configuration file, instead of the one found here."),
    ] = None,
    only: Annotated[
        Optional[list[str]],
        typer.Option("--only", metavar="TRACKER", help=f"Stand in for this one only: {', '.join(TRACKERS)}."),
    ] = None,
) -> None:
    """Run a script unchanged; what it logs with any tracker's API goes to the configured backends.

    `import wandb`, `neptune_scale`, `mlflow`, `torch.utils.tensorboard` and `tensorboardX` give stand-ins in this one
    process. With a `gradients` section in the configuration every optimizer and its model are watched. The exit status
    is the script's; 2 if it could not be started.
    """
    launch(arguments, config=config, only=only or ())
