"""A courier's own files: the cursor with its progress, and the definitions it has met.

Order of writing: definitions, cursor, state. The cursor is the truth; definitions ahead of it are harmless; the state
(`state.json`) is for people and commands.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tracker_bridge.delivery._translate import Definitions, Progress
from tracker_bridge.journal import Position
from tracker_bridge.rundir import replace_file

_CURSOR, _DEFINITIONS = "cursor.msgpack", "definitions.msgpack"


class Cursor(msgspec.Struct, frozen=True):
    """How far the backend has got, and the translation state that belongs to that place."""

    position: Position = Position()
    progress: Progress = msgspec.field(default_factory=Progress)
    ended: str | None = None
    """How the run's latest attempt ended, if the records before `position` say so."""
    attempt: int | None = None
    """The latest attempt among the records before `position`."""


def load_cursor(folder: Path) -> tuple[Cursor, Definitions]:
    """The stored cursor and definitions; both fresh (deliver from the start) if either is missing or damaged."""
    try:
        cursor = msgspec.msgpack.decode((folder / _CURSOR).read_bytes(), type=Cursor)
        definitions = msgspec.msgpack.decode((folder / _DEFINITIONS).read_bytes(), type=Definitions)
    except (OSError, msgspec.DecodeError):
        return Cursor(), Definitions()
    return cursor, definitions


def save_definitions(folder: Path, definitions: Definitions) -> None:
    """Replace the definitions in one step."""
    replace_file(folder / _DEFINITIONS, msgspec.msgpack.encode(definitions))


def save_cursor(folder: Path, cursor: Cursor) -> None:
    """Replace the cursor in one step."""
    replace_file(folder / _CURSOR, msgspec.msgpack.encode(cursor))
