"""How far each backend has got, and how it is doing. Written by its courier only."""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from tracker_bridge.journal import Position
from tracker_bridge.rundir._files import read_json, write_json
from tracker_bridge.rundir._paths import RunPaths

Health = Literal["opening", "healthy", "retrying", "down", "closed"]


class BackendState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `backends/<name>/state.json`.

    Counts are journal records; `points` are values sent: each scalar of a row, and one for each other item.
    """

    position: Position = Position()
    health: Health = "opening"
    sent: int = 0
    points: int = 0
    dropped: dict[str, int] = {}
    last_error: Union[str, None] = None
    last_error_ns: Union[int, None] = None
    closed_attempt: int = 0
    """The attempt whose end was told to the tracker."""
    updated_ns: int = 0


def load_state(paths: RunPaths, backend: str) -> BackendState:
    """The backend's state; a fresh one if it has none yet or the file is damaged."""
    try:
        return read_json(paths.state(backend), BackendState)
    except (OSError, msgspec.DecodeError):
        return BackendState()


def save_state(paths: RunPaths, backend: str, state: BackendState) -> None:
    """Replace the state file in one step."""
    write_json(paths.state(backend), state)
