"""What the terminal shows: consoles, tables, texts of strangers made harmless, times and numbers in words.

Names, tags and error texts may come from anywhere. They are shown as text: never read as markup, and with every
control, escape and direction character written out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import IO, Any, Literal

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_OFF_TERMINAL = 160
_STYLES = {
    "healthy": "green",
    "delivered": "green",
    "finished": "green",
    "ok": "green",
    "running": "cyan",
    "opening": "cyan",
    "retrying": "yellow",
    "waiting": "yellow",
    "warning": "yellow",
    "killed": "yellow",
    "down": "red",
    "failed": "red",
    "crashed": "red",
    "unreadable": "red",
    "problem": "red",
}


def stdout() -> Console:
    """The console for results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """The console for progress and errors."""
    return _console(sys.stderr)


def _console(file: IO[str]) -> Console:
    # Off a terminal there is no width; rich would fold at 80 columns what `grep` and `awk` want whole.
    width = None if file.isatty() or "COLUMNS" in os.environ else _WIDTH_OFF_TERMINAL
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def print_error(message: str) -> None:
    """One error on standard error."""
    text = Text("error: ", style="bold red")
    text.append(visible(message), style="default not bold")
    stderr().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """The one document of a `--json` output."""
    # ASCII only: on a terminal, a direction or escape character in a name must not act here either.
    sys.stdout.write(json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2))
    sys.stdout.write("\n")


def visible(text: str) -> str:
    """The text with everything that a terminal would obey instead of show written out, as in a Python literal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def cell(text: str | None, style: str = "") -> Text:
    """Foreign text for a table; `-` where there is none."""
    return Text(visible(text), style=style) if text else Text("-", style="dim")


def state_cell(state: str) -> Text:
    """A state in its colour."""
    return Text(state, style=_STYLES.get(state, ""))


def number_cell(number: int, style: str = "") -> Text:
    """A whole number with thousands separated; a dim 0."""
    return Text(f"{number:,}", style=style if number else "dim")


Column = tuple[str, Literal["left", "right"]]


_NEVER_FOLDED = ("status", "state", "backend", "adapter", "option")


def make_table(*columns: Column) -> Table:
    """A table with a rule below its head; columns are (title, alignment)."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", collapse_padding=True)
    for title, justify in columns:
        table.add_column(title, justify=justify, overflow="fold", no_wrap=justify == "right" or title in _NEVER_FOLDED)
    return table


def facts(pairs: Sequence[tuple[str, Text | str | None]]) -> Table:
    """Name and value pairs, one a line; those without a value are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            table.add_row(name, value if isinstance(value, Text) else cell(value))
    return table


def ago(time_ns: int | None) -> str:
    """How long ago a moment (nanoseconds since the epoch) was."""
    if not time_ns:
        return ""
    seconds = max(0.0, time.time() - time_ns / 1e9)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def size_text(count: float) -> str:
    """Bytes in words: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def plural(count: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
