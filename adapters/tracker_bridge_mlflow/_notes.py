"""What the adapter must know again after a restart and MLflow does not tell, in the backend's own folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_FILE_NAME = "mlflow.json"


class Notes(msgspec.Struct):
    """`renamed`: MLflow's name -> original, of all series so far. `last_ns`: when the newest item was logged."""

    renamed: dict[str, str] = {}
    last_ns: int = 0


def load_notes(folder: Path) -> Notes:
    """The notes of an earlier opening; new ones if there are none that can be read."""
    try:
        return msgspec.json.decode((folder / _FILE_NAME).read_bytes(), type=Notes)
    except (OSError, msgspec.DecodeError):
        return Notes()


def save_notes(folder: Path, notes: Notes) -> None:
    """Replace the file in one step. Raises `OSError`."""
    temporary = folder / f".{_FILE_NAME}.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(notes))
    os.replace(temporary, folder / _FILE_NAME)
