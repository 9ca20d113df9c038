"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
ConfigOption = Annotated[
    Optional[Path],
    typer.Option("--config", "-c", metavar="FILE", help="Configuration file, instead of the one found here."),
]
DirOption = Annotated[
    Optional[Path], typer.Option("--dir", metavar="DIR", help="Folder of the runs, instead of the configured one.")
]
