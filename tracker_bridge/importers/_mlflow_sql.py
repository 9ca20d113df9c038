"""MLflow's sqlite store, read as the tables that it is (they have kept these columns since MLflow 1.0)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from tracker_bridge.importers._mlflow_store import Description, local_folders, restored_value
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading
from tracker_bridge.importers._plain import as_step, clean
from tracker_bridge.importers._sqlite import opened, tables
from tracker_bridge.records import Metrics

_RUNS = """
    SELECT r.run_uuid, r.name, e.name, r.status, r.end_time,
        (SELECT count(*) FROM metrics AS m WHERE m.run_uuid = r.run_uuid)
    FROM runs AS r JOIN experiments AS e ON e.experiment_id = r.experiment_id
    WHERE r.lifecycle_stage = 'active' ORDER BY r.start_time, r.run_uuid"""
_METRICS = "SELECT timestamp, step, key, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step, key"


def sql_runs(kind: str, database: Path) -> Iterator[ForeignRun]:
    """The active runs in the database. Raises `ForeignFormatError`."""
    with opened(database) as db:
        if not {"runs", "experiments", "metrics", "params", "tags"} <= tables(db):
            raise ForeignFormatError(Damage(str(database), "", "not a database of MLflow: its tables are missing"))
        rows = db.execute(_RUNS).fetchall()
    for run_id, name, experiment, status, end, points in rows:
        yield ForeignRun(
            kind=kind,
            paths=(str(database),),
            identity=(str(run_id),),
            fingerprint=f"{status}:{end}:{points}",
            root=str(database.parent),
            experiment=clean(str(experiment)),
            name=clean(str(name)) if name else str(run_id),
            details={"store": "sql"},
        )


def open_sql(run: ForeignRun, reading: Reading, stack: ExitStack) -> SqlStore:
    """The run in its database, until `stack` ends."""
    path = Path(run.paths[0])
    return SqlStore(path, run.identity[0], stack.enter_context(opened(path)), reading)


class SqlStore:
    """One run in a database."""

    def __init__(self, path: Path, run_id: str, db: Connection, reading: Reading) -> None:
        self._path = path
        self._run_id = run_id
        self._db = db
        self._reading = reading
        self._about: Description | None = None

    def describe(self) -> Description:
        if self._about is None:
            query = "SELECT experiment_id, status, start_time, end_time, artifact_uri FROM runs WHERE run_uuid = ?"
            row = self._db.execute(query, (self._run_id,)).fetchone()
            if row is None:
                raise ForeignFormatError(Damage(str(self._path), f"run {self._run_id}", "the run is gone"))
            experiment, status, start, end, uri = row
            self._about = Description(
                self._run_id, str(experiment), str(status), _int(start), _int(end), str(uri or ""),
                self._pairs("SELECT key, value FROM params WHERE run_uuid = ?"),
                self._pairs("SELECT key, value FROM tags WHERE run_uuid = ?"),
            )  # fmt: skip
        return self._about

    def metrics(self) -> Iterator[Metrics]:
        rows = self._db.execute(_METRICS, (self._run_id,))
        for (time_ms, step), group in groupby(self._sound(rows), key=lambda row: (row[0], row[1])):
            values: dict[str, float] = {}
            for _, _, key, value in group:
                if key in values:
                    yield Metrics(time_ms * 1_000_000, step, values)
                    values = {}
                values[key] = value
            yield Metrics(time_ms * 1_000_000, step, values)

    def artifact_folders(self) -> Iterator[Path]:
        about = self.describe()
        return local_folders(about.artifact_uri, self._path.parent, about.experiment_id, self._run_id)

    def _pairs(self, query: str) -> dict[str, str]:
        rows = self._db.execute(query, (self._run_id,))
        return {str(key): "" if value is None else str(value) for key, value in rows}

    def _sound(self, rows: Iterator[Any]) -> Iterator[tuple[int, int | float, str, float]]:
        for timestamp, step, key, value, is_nan in rows:
            # A numpy integer that was logged straight into sqlite is stored as its eight bytes.
            step = int.from_bytes(step, "little", signed=True) if isinstance(step, bytes) and len(step) == 8 else step
            whole, time_ms = as_step(step), _int(timestamp)
            if whole is None or time_ms is None or not isinstance(value, (int, float)):
                where = f"run {self._run_id}, metric {str(key)[:80]!r}"
                self._reading.on_damage(Damage(str(self._path), where, "a point has no number, step or time"))
                continue
            yield time_ms, whole, clean(str(key)), math.nan if is_nan else restored_value(float(value))


def _int(value: Any) -> int | None:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 9_000_000_000_000 else None
