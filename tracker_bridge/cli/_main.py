"""Puts the commands together and turns errors into messages and exit statuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from tracker_bridge._version import __version__
from tracker_bridge.cli import (
    _backends,
    _diagnose,
    _doctor,
    _export,
    _import,
    _prune,
    _replay,
    _report,
    _run,
    _show,
    _status,
    _sync,
    _tail,
)
from tracker_bridge.cli._output import print_error
from tracker_bridge.errors import BridgeError
from tracker_bridge.rundir import NotARunError

USAGE = 2
_COMMANDS: dict[str, Callable[..., Any]] = {
    "run": _run.run,
    "import": _import.import_runs,
    "replay": _replay.replay,
    "export": _export.export,
    "prune": _prune.prune,
    "status": _status.status,
    "sync": _sync.sync,
    "backends": _backends.backends,
    "doctor": _doctor.doctor,
    "diagnose": _diagnose.diagnose,
    "report": _report.report,
    "show": _show.show,
    "tail": _tail.tail,
}


def make_app() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name="tracker-bridge",
        help="Gradient norms and metrics to any tracker. Exit status: 0 ok, 1 something undelivered or found, 2 usage.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, command in _COMMANDS.items():
        app.command(name, context_settings=_run.SETTINGS if name == "run" else None)(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tracker-bridge {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (`arguments`: without the program's name; None: those of the process) and exit."""
    try:
        make_app()(args=None if arguments is None else list(arguments), prog_name=_program())
    except (BridgeError, NotARunError) as error:
        print_error(str(error))
        sys.exit(USAGE)


def _program() -> str:
    return "python -m tracker_bridge" if sys.argv[0].endswith("__main__.py") else "tracker-bridge"
