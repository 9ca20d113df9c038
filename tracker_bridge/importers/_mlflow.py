"""MLflow runs to records: a local sqlite or file store without MLflow, any other store through its client.

MLflow's SQL store keeps an infinity as the largest double; it becomes an infinity again. Params are text there and stay
text. A run that still says `RUNNING` has no end that anybody saw: it is `crashed`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tracker_bridge.config import scrub
from tracker_bridge.importers._files import allowed_file, safe_name
from tracker_bridge.importers._mlflow_client import open_server, server_runs
from tracker_bridge.importers._mlflow_files import file_runs, is_file_store, open_files
from tracker_bridge.importers._mlflow_sql import open_sql, sql_runs
from tracker_bridge.importers._mlflow_store import Description, Store
from tracker_bridge.importers._model import ForeignFormatError, ForeignRun, Reading
from tracker_bridge.importers._own_mlflow import OwnMlflow
from tracker_bridge.importers._plain import clean
from tracker_bridge.records import Artifact, Params, Record, RunFinished, RunStarted, Tags, Text

_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "killed"}
_SYSTEM = "mlflow."
_NOTE = "mlflow.note.content"
_PROVENANCE = {
    "mlflow.user": "user",
    "mlflow.source.name": "script",
    "mlflow.source.git.commit": "git_commit",
    "mlflow.parentRunId": "parent_run",
}
_OPENERS: dict[str, Callable[[ForeignRun, Reading, ExitStack], Store]] = {
    "sql": open_sql,
    "files": open_files,
    "server": open_server,
}


def discover(kind: str, path: str) -> Iterator[ForeignRun]:
    """The runs that are not deleted, of a database, a folder (`mlruns`, or one with `mlflow.db`) or a tracking URI."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme.startswith("sqlite"):
        yield from sql_runs(kind, Path(rest.removeprefix("/")))
    elif separator and scheme == "file":
        yield from discover(kind, unquote(urlsplit(path).path))
    elif separator or path == "databricks":
        yield from server_runs(kind, path)
    elif Path(path).is_file():
        yield from sql_runs(kind, Path(path))
    elif Path(path).is_dir():
        found = False
        for store in (Path(path), Path(path, "mlruns")):
            if is_file_store(store):
                found = True
                yield from file_runs(kind, store)
        for database in sorted(Path(path).glob("*.db")):
            found = True
            yield from sql_runs(kind, database)
        if not found:
            raise FileNotFoundError(f"{path} holds no store of MLflow (no *.db, no <experiment>/meta.yaml)")
    else:
        raise FileNotFoundError(f"there is no file or directory {path}")


def read(run: ForeignRun, reading: Reading) -> Iterator[Record]:
    """The records of one run."""
    last: Record | None = None
    try:
        with ExitStack() as stack:
            store = _OPENERS[run.details["store"]](run, reading, stack)
            for last in _records(run, reading, store):
                yield last
    except ForeignFormatError as error:
        reading.on_damage(error.damage)
        if last is None:
            last = RunStarted(0, run.run_id, 1, 0, "", {"imported_from": {"kind": run.kind, "source": run.source}})
            yield last
        if not isinstance(last, RunFinished):
            yield RunFinished(last.time_ns, "crashed")


def _records(run: ForeignRun, reading: Reading, store: Store) -> Iterator[Record]:
    about = store.describe()
    start_ns, end_ns = _ns(about.start_ms), _ns(about.end_ms)
    own = OwnMlflow.of(about.tags)
    yield RunStarted(start_ns, run.run_id, 1, 0, "", _provenance(run, about))
    params: dict[str, Any] = {clean(key): scrub(clean(value), ()) for key, value in about.params.items()}
    if own is not None:
        own.take(_artifacts(run, reading, about, store))
        yield from own.described(start_ns, params, about.tags)
    else:
        if params:
            yield Params(start_ns, params)
        tags: dict[str, str | None] = {
            clean(key): clean(value) for key, value in about.tags.items() if not key.startswith(_SYSTEM)
        }
        if tags:
            yield Tags(start_ns, tags)
    note = about.tags.get(_NOTE)
    if note:
        yield Text(start_ns, "notes", clean(note))
    last_ns = start_ns
    for row in store.metrics():
        last_ns = max(last_ns, row.time_ns)
        yield row if own is None else own.restored(row)
    last_ns = max(last_ns, end_ns)
    if own is not None:
        yield from own.kept(last_ns)
    else:
        for name, path in _artifacts(run, reading, about, store):
            yield Artifact(last_ns, name, str(path))
    status = _STATUS.get(about.status, "crashed")
    yield RunFinished(last_ns, status if own is None else own.status(status))


def _provenance(run: ForeignRun, about: Description) -> dict[str, Any]:
    source = run.source if "://" in run.source else os.path.abspath(run.source)
    provenance: dict[str, Any] = {"imported_from": {"kind": run.kind, "source": scrub(source, ()), "run": about.run_id}}
    for tag, key in _PROVENANCE.items():
        if about.tags.get(tag):
            provenance[key] = scrub(clean(about.tags[tag]), ())
    return provenance


def _artifacts(run: ForeignRun, reading: Reading, about: Description, store: Store) -> Iterator[tuple[str, Path]]:
    """(name, file) of each artifact that may be read."""
    scratch = (str(reading.scratch),) if reading.scratch is not None else ()
    roots = (*((run.root,) if run.root else ()), *run.file_roots, *scratch)
    for folder in store.artifact_folders():
        if folder.is_dir():
            yield from _walk(folder, roots, reading)
            return
    if about.artifact_uri and run.details["store"] != "server" and "://" in about.artifact_uri:
        scheme = about.artifact_uri.partition(":")[0]
        if scheme != "file":
            reading.left_out[f"artifacts that lie in a store ({scheme}:)"] += 1


def _walk(folder: Path, roots: tuple[str, ...], reading: Reading) -> Iterator[tuple[str, Path]]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            source = Path(place, name)
            found = allowed_file(source, roots)
            if found is None:
                reading.left_out["files outside of the imported path"] += 1
            else:
                yield safe_name(source.relative_to(folder).as_posix()), found


def _ns(milliseconds: int | None) -> int:
    return milliseconds * 1_000_000 if milliseconds is not None and abs(milliseconds) < 9_000_000_000_000 else 0
