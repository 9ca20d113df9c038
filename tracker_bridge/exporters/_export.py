"""`export_run`: one run to one file, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Literal

import msgspec

from tracker_bridge.exporters._arrow import write_parquet
from tracker_bridge.exporters._items import Selection
from tracker_bridge.exporters._text import write_csv, write_jsonl
from tracker_bridge.rundir import RunPaths, load_manifest

Format = Literal["csv", "parquet", "jsonl"]
FORMATS: tuple[Format, ...] = ("csv", "parquet", "jsonl")

_TEXT = {"csv": write_csv, "jsonl": write_jsonl}


class Exported(msgspec.Struct, frozen=True):
    """What was written."""

    run_id: str
    path: str
    points: int


def export_run(
    run_dir: str | Path, file_format: Format, target: str | Path, *, selection: Selection | None = None
) -> Exported:
    """Write the run in `run_dir` to the file `target`, replacing it.

    `csv` and `parquet` hold the scalar series, long (`name`, `step`, `time_ns`, `value`); `jsonl` holds everything.
    Raises `NotARunError`, `ImportError` (Parquet without pyarrow), `ValueError` on another format, `OSError`.
    """
    paths, wanted, target = RunPaths(Path(run_dir)), selection or Selection(), Path(target)
    manifest = load_manifest(paths)
    if file_format not in FORMATS:
        raise ValueError(f"unknown format {file_format!r} (known: {', '.join(FORMATS)})")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if file_format == "parquet":
            count = write_parquet(paths, wanted, temporary)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                count = _TEXT[file_format](paths, wanted, file)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Exported(manifest.run_id, str(target), count)


def print_run(
    run_dir: str | Path, file_format: Literal["csv", "jsonl"], file: IO[str], *, selection: Selection | None = None
) -> Exported:
    """The same into an open text stream."""
    paths = RunPaths(Path(run_dir))
    manifest = load_manifest(paths)
    return Exported(manifest.run_id, "-", _TEXT[file_format](paths, selection or Selection(), file))
