"""One foreign run into a run directory of the bridge: all of it, or nothing.

The directory is made in a hidden place beside the others and renamed when it is whole, so a killed import leaves no
half run, and doing it again starts anew. Files are copied in: a moved run does not depend on where it came from.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args

import msgspec

from tracker_bridge.importers._files import safe_name
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, refuse
from tracker_bridge.importers._staging import Staging, settle
from tracker_bridge.journal import JournalError, JournalWriter
from tracker_bridge.records import AnyRecord, Artifact, Metrics, Record, RunFinished, RunStarted, encodable
from tracker_bridge.rundir import Manifest, NotARunError, RunPaths, Status, load_manifest, write_json

_FINGERPRINT = "import_fingerprint"
_PATIENCE = 60.0
_PAUSE = 0.05

Result = Literal["imported", "skipped", "failed"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one foreign run. `why` explains `skipped` and `failed`.

    `left_out` counts by reason what the records cannot hold; `damage` are the places that a salvaging import passed
    over. `records` and `points` were written to the journal of `dir`.
    """

    result: Result
    source: str
    run_id: str
    name: Union[str, None] = None
    dir: Union[str, None] = None
    why: Union[str, None] = None
    records: int = 0
    points: int = 0
    left_out: dict[str, int] = {}
    damage: tuple[str, ...] = ()


def import_run(run: ForeignRun, queue_dir: Path, *, salvage: bool = False) -> Outcome:
    """Import one run into `queue_dir`. What is wrong with the run is in the outcome.

    Raises `OSError` if nothing can be written to `queue_dir`.
    """
    with Staging(queue_dir) as staging:
        return import_staged(run, staging, salvage=salvage)


def import_staged(run: ForeignRun, staging: Staging, *, salvage: bool = False) -> Outcome:
    """`import_run` for one of many runs, which are all made in one process' place."""
    final = staging.queue / run.run_id
    known = _known(run, final)
    if known is not None:
        return outcome_of(run, "skipped", dir=str(final), why=known)
    staging.open()
    place: Path | None = None
    try:
        place = staging.place(final.name)
        outcome = _write(run, place, final, salvage=salvage)
    except (ForeignFormatError, OSError, ImportError, JournalError) as error:
        outcome = outcome_of(run, "failed", why=str(error) or type(error).__name__)
    except Exception as error:  # a bug of ours must not end the import of a thousand other runs
        outcome = outcome_of(run, "failed", why=f"internal error, please report it: {type(error).__name__}: {error}")
    if place is not None and outcome.result != "imported":
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def _known(run: ForeignRun, final: Path) -> str | None:
    """Why the run need not be imported, or None."""
    if not final.exists():
        return None
    try:
        before = load_manifest(RunPaths(final)).provenance.get(_FINGERPRINT)
    except NotARunError as error:
        return f"{final} is in the way: {error}"
    if before == run.fingerprint:
        return "is imported already"
    return f"was imported before, and its source has changed since; to import it anew, first remove {final}"


def _write(run: ForeignRun, staging: Path, final: Path, *, salvage: bool) -> Outcome:
    paths = RunPaths(staging)
    # A run without files or backends has no folders for them: each folder costs as much as all that is written here.
    damage: list[Damage] = []
    reading = Reading(on_damage=damage.append if salvage else refuse, scratch=paths.files)
    copies = _Copies(staging, paths.files)
    counts: Counter[str] = Counter()
    started, finished = RunStarted(0, run.run_id, 1, 0, ""), RunFinished(0, "crashed")
    with JournalWriter.create_patient(paths.journal, run.run_id) as writer:
        for record in run.records(reading):
            if isinstance(record, RunStarted):
                started = record
            elif isinstance(record, RunFinished):
                finished = record
            elif isinstance(record, Artifact):
                record = copies.kept(record)
            if _append(writer, record):
                counts["records"] += 1
                counts["points"] += len(record.values) if isinstance(record, Metrics) else 0
            else:
                reading.left_out["records too large for the journal"] += 1
    _describe(run, paths, started, finished, dict(reading.left_out), damage)
    # What stands there is taken for imported, and its source may be deleted: it must be whole after a power cut, too.
    settle(staging)
    try:
        os.rename(staging, final)
    except OSError:
        known = _known(run, final)
        if known is None:
            raise
        # Another process was faster with the same run.
        return outcome_of(run, "skipped", dir=str(final), why=known)
    return outcome_of(
        run,
        "imported",
        dir=str(final),
        records=counts["records"],
        points=counts["points"],
        left_out=dict(reading.left_out),
        damage=tuple(map(str, damage)),
    )


def _append(writer: JournalWriter, record: Record) -> bool:
    """Append, waiting for a slow disk as training never would. False if it is too large. Raises `OSError`."""
    too_large = writer.dropped.get("too_large", 0)
    deadline = time.monotonic() + _PATIENCE
    try:
        record_sequence = writer.append(cast("AnyRecord", record))
    except UnicodeEncodeError:  # a name from a file system of another encoding
        record = encodable(record)
        record_sequence = writer.append(cast("AnyRecord", record))
    while record_sequence is None:
        if writer.dropped.get("too_large", 0) > too_large:
            return False
        reasons = ", ".join(writer.dropped)
        if "slow_disk" not in writer.dropped or time.monotonic() > deadline:
            raise OSError(f"the journal does not take a record: {reasons}")
        time.sleep(_PAUSE)
        record_sequence = writer.append(cast("AnyRecord", record))
    return True


def _describe(
    run: ForeignRun,
    paths: RunPaths,
    started: RunStarted,
    finished: RunFinished,
    left_out: dict[str, int],
    damage: list[Damage],
) -> None:
    provenance: dict[str, Any] = {**started.provenance, _FINGERPRINT: run.fingerprint}
    if left_out:
        provenance["import_left_out"] = left_out
    if damage:
        provenance["import_damage"] = list(map(str, damage))
    manifest = Manifest(
        run_id=run.run_id,
        project=run.project,
        experiment=run.experiment or started.provenance.get("experiment"),
        name=run.name,
        status=cast("Status", finished.status if finished.status in get_args(Status) else "crashed"),
        created_ns=started.time_ns,
        finished_ns=finished.time_ns,
        provenance=provenance,
    )
    write_json(paths.manifest, encodable(manifest))


class _Copies:
    """Copies of the run's files below `files/`, each under a name of its own."""

    def __init__(self, root: Path, files: Path) -> None:
        self._root = root
        self._files = files
        self._names: set[str] = set()

    def kept(self, record: Artifact) -> Artifact:
        """The record with a path relative to the run directory. Raises `OSError`."""
        source = Path(record.path)
        if not source.is_relative_to(self._files):
            name = safe_name(record.name)
            target = self._files / self._free(name if Path(name).suffix else name + source.suffix)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            source = target
        path = source.relative_to(self._root).as_posix()
        return Artifact(record.time_ns, record.name, path, record.step, record.media_type)

    def _free(self, name: str) -> str:
        """`name`, or with a number, so that it neither repeats another nor is another's folder."""
        number = 1
        candidate = name
        while candidate.casefold() in self._names or self._blocked(candidate):
            number += 1
            stem, dot, ending = name.rpartition(".")
            candidate = f"{stem}-{number}{dot}{ending}" if stem and "/" not in ending else f"{name}-{number}"
        self._names.add(candidate.casefold())
        return candidate

    def _blocked(self, name: str) -> bool:
        place = self._files / name
        if place.exists():
            return True
        return any(parent.is_file() for parent in place.parents if parent.is_relative_to(self._files))


def outcome_of(run: ForeignRun, result: Result, **more: Any) -> Outcome:
    """What became of `run`, in texts that any file and any other process can hold."""
    return encodable(Outcome(result=result, source=run.source, run_id=run.run_id, name=run.name, **more))
