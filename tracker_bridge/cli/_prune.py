"""`tracker-bridge prune [RUN...]`: removes runs that are delivered and old."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Optional, Union

import msgspec
import typer
from rich.text import Text

from tracker_bridge.cli._options import ConfigOption, DirOption, JsonOption
from tracker_bridge.cli._output import ago, cell, make_table, plural, print_json, size_text, stdout, visible
from tracker_bridge.cli._runs import RunSummary, choose, queue_dir, summarise, summarise_all
from tracker_bridge.errors import UsageError
from tracker_bridge.rundir import FileLock, LockBusyError, RunPaths

_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_HIDDEN = ".pruned-"


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one run. `kept`: why it is still there; `size` is in bytes."""

    run_id: str
    dir: str
    size: int
    kept: Union[str, None] = None


def prune(
    runs: Annotated[
        Optional[list[str]], typer.Argument(metavar="[RUN]...", help="Ids or paths; none: every run in the folder.")
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Only runs that ended so long ago, e.g. 12h, 30d.")
    ] = "30d",
    force: Annotated[bool, typer.Option("--force", help="Also runs that are not wholly delivered anywhere.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    config: ConfigOption = None,
    directory: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove run directories that are wholly delivered and old.

    A run that goes on or is being delivered is never removed; one that some backend has not had, or that was never
    sent anywhere, only with --force. Exit status 1 if a named run was kept.
    """
    folder = queue_dir(directory, config)
    age = _seconds(older_than)
    chosen = choose(runs, folder) if runs else [RunPaths(Path(run.dir)) for run in summarise_all(folder)[0]]
    outcomes = [_prune_one(paths, age, force=force, dry_run=dry_run) for paths in chosen]
    if json:
        print_json({"dir": str(folder), "dry_run": dry_run, "runs": outcomes})
    else:
        _print(outcomes, folder, dry_run=dry_run)
    if runs and any(outcome.kept for outcome in outcomes):
        raise typer.Exit(1)


def _prune_one(paths: RunPaths, age: float, *, force: bool, dry_run: bool) -> Pruned:
    run = summarise(paths)
    size = sum(path.lstat().st_size for path in paths.root.rglob("*") if path.is_file() and not path.is_symlink())
    kept = _reason(run, age, force=force)
    if kept is None and not dry_run:
        kept = _remove(paths)
    return Pruned(run_id=run.id, dir=run.dir, size=size, kept=kept)


def _reason(run: RunSummary, age: float, *, force: bool) -> str | None:
    """Why the run stays, or None."""
    if run.live:
        return "its training process runs"
    if run.delivering:
        return "is being delivered"
    ended = run.finished_ns or _newest(Path(run.dir))
    if time.time() - ended / 1e9 < age:
        return f"ended {ago(ended)}"
    if force:
        return None
    if not run.backends:
        return "was never sent to any tracker (--force removes it all the same)"
    if run.unfinished:
        waiting = ", ".join(backend.name for backend in run.backends if backend.state != "delivered")
        return f"not wholly delivered to {waiting} (--force removes it all the same)"
    return None


def _remove(paths: RunPaths) -> str | None:
    """Remove the directory; why not, if it cannot be. A kill leaves the run or a hidden remainder, never half a run."""
    hidden = paths.root.with_name(f"{_HIDDEN}{os.getpid()}-{paths.root.name}")
    with contextlib.ExitStack() as locks:
        try:
            for path in paths.held_by_deliveries():
                lock = FileLock(path)
                lock.acquire(timeout=0)
                locks.callback(lock.release)
            os.rename(paths.root, hidden)
        except LockBusyError:
            return "is being delivered"
        except OSError as error:
            return f"cannot be removed: {error.strerror or error}"
    for left in [hidden, *paths.root.parent.glob(f"{_HIDDEN}*")]:
        if left.is_symlink():
            left.unlink(missing_ok=True)
        else:
            shutil.rmtree(left, ignore_errors=True)
    return None


def _newest(root: Path) -> int:
    return max((path.lstat().st_mtime_ns for path in root.rglob("*")), default=0)


def _seconds(text: str) -> float:
    for unit in sorted(_UNITS, key=len, reverse=True):
        number = text.strip().removesuffix(unit)
        if number != text.strip():
            try:
                value = float(number)
            except ValueError:
                break
            if value >= 0:
                return value * _UNITS[unit]
    raise UsageError(f"--older-than {text!r} is no age; write e.g. 12h or 30d")


def _print(outcomes: list[Pruned], folder: Path, *, dry_run: bool) -> None:
    console = stdout()
    gone = [outcome for outcome in outcomes if outcome.kept is None]
    if outcomes:
        table = make_table(("run", "left"), ("size", "right"), ("outcome", "left"))
        for outcome in outcomes:
            word = cell(outcome.kept, "dim") if outcome.kept else Text("would be removed" if dry_run else "removed")
            table.add_row(cell(outcome.run_id, "bold"), size_text(outcome.size), word)
        console.print(table)
    verb = "would be removed from" if dry_run else "removed from"
    freed = size_text(sum(outcome.size for outcome in gone))
    console.print(Text(f"{plural(len(gone), 'run')} ({freed}) {verb} {visible(str(folder))}."), soft_wrap=True)
