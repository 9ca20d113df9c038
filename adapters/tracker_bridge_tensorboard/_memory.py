"""What the adapter must know again after a restart, in one small file beside the event files.

It is written when a flush ends, so it never claims more than the event files hold; what they hold beyond it (a crash
came between) is found by reading their tails. It lies in the run's directory, so it moves and vanishes with the data.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Union

import msgspec

from tracker_bridge.adapter import RunInfo

FILE_NAME = ".tracker_bridge.msgpack"


class LaneMemory(msgspec.Struct):
    """One directory of event files: their sizes, and the last step of each tag (int64 bytes in the order of `tags`)."""

    directory: str
    files: dict[str, int] = {}
    steps: bytes = b""


class Memory(msgspec.Struct):
    """All items with a smaller number than `sequence` are stored, and of that number the events with digests in `last`.

    `started_ns` tells journals apart: the numbers mean nothing for a run that began again.
    """

    run_id: str
    backend: str
    started_ns: int
    sequence: int = -1
    last: list[bytes] = []
    last_ns: int = 0
    tags: list[str] = []
    lanes: list[LaneMemory] = []
    params: dict[str, Any] = {}
    run_tags: dict[str, Union[str, None]] = {}
    renamed: dict[str, str] = {}


def load_memory(directory: Path) -> Memory | None:
    """What an earlier writer left in `directory`; None if there is nothing readable."""
    try:
        return msgspec.msgpack.decode((directory / FILE_NAME).read_bytes(), type=Memory)
    except (OSError, msgspec.DecodeError):
        return None


def save_memory(directory: Path, memory: Memory) -> None:
    """Replace the file in one step. Raises `OSError`."""
    temporary = directory / f"{FILE_NAME}.{os.getpid()}"
    temporary.write_bytes(msgspec.msgpack.encode(memory))
    os.replace(temporary, directory / FILE_NAME)


def claim(directory: Path, memory: Memory) -> bool:
    """Take `directory` for the writer of `memory`; of several that try at once one gets True. Raises `OSError`."""
    directory.mkdir(parents=True, exist_ok=True)
    data, target = msgspec.msgpack.encode(memory), directory / FILE_NAME
    temporary = directory / f"{FILE_NAME}.{os.getpid()}-{secrets.token_hex(4)}"
    temporary.write_bytes(data)
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links, where a kill may leave the file empty
        try:
            with target.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
    finally:
        temporary.unlink()
    return True


def belongs_to(memory: Memory, run: RunInfo) -> bool:
    """Whether this backend of this run wrote it."""
    return (memory.run_id, memory.backend) == (run.run_id, run.backend)
