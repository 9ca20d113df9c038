"""Where a run lies below `log_dir`, and how its event files are called.

The directory follows from the run alone, so that a repeated `open`, a resumed run and a job that was queued again find
the same place. File names grow, because readers take the files of a directory in the order of their names.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from tracker_bridge.adapter import RunInfo

_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\/\ud800-\udfff]')
ABOUT, SERIES, STATUS = "0.about", "1.series", "2.status"
"""Parts of file names, in the order in which readers shall take the files of one opening."""

_LONGEST_PART = 150
# Bytes; file systems take 255, and names of sub-runs and suffixes must fit behind.


def run_directories(log_dir: Path, run: RunInfo, comment: str) -> Iterator[Path]:
    """Places for the run, best first: `log_dir/project/experiment/name-run_id`, then with the backend's name added."""
    own = run.run_id if run.name in (None, "", run.run_id) else f"{run.name}-{run.run_id}"
    folder = log_dir.joinpath(*_parts(run.project), *_parts(run.experiment))
    stem = _part(own + comment)
    yield folder / stem
    yield folder / f"{stem}-{_part(run.backend)}"
    for number in range(2, 1000):
        yield folder / f"{stem}-{_part(run.backend)}-{number}"


def event_files(directory: Path) -> list[Path]:
    """The event files right in `directory`, in the order in which readers take them."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if "tfevents" in path.name and path.is_file())


def part_files(directory: Path, part: str) -> list[Path]:
    """The event files in `directory` of one part."""
    return [path for path in event_files(directory) if f".{part}" in path.name]


def next_stamp(directory: Path, now_s: int) -> int:
    """Seconds for new file names: now, or later if the clock went back since the newest file was named."""
    stamps = (re.match(r"events\.out\.tfevents\.(\d+)", path.name) for path in event_files(directory))
    return max([now_s, *(int(match[1]) + 1 for match in stamps if match)])


def event_file(directory: Path, stamp: int, part: str, suffix: str) -> Path:
    """The name of a file; `part` is one of `ABOUT`, `SERIES`, `STATUS`, the first with a number behind."""
    host = _part(socket.gethostname())
    return directory / f"events.out.tfevents.{stamp:010d}.{host}.{os.getpid()}.{part}{suffix}"


def _parts(path: str | None) -> list[str]:
    return [_part(part) for part in (path or "").split("/") if part not in ("", ".", "..")]


def _part(text: str) -> str:
    clean = _UNSAFE.sub("_", text).strip()
    clean = clean.encode()[:_LONGEST_PART].decode(errors="ignore")
    return clean if clean not in ("", ".", "..") else "_"
