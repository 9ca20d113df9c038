"""Reads what neptune-scale stored in its own local databases, with Neptune's protobufs and nothing of the adapter's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import SET_OPERATION, Run, UpdateRunSnapshot

from tests.standins.neptune_server import StoredRun as ServerRun
from tests.standins.neptune_server import plain_value
from tracker_bridge.testing import Point, StoredRun


def operations(database: Path) -> Iterator[Run | UpdateRunSnapshot]:
    """The operations of one database in their order."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT operation_type, operation FROM run_operations ORDER BY sequence_id"
        ).fetchall()
    for kind, blob in rows:
        yield Run.FromString(blob) if kind == 1 else UpdateRunSnapshot.FromString(blob)


def databases(directory: Path, run_id: str) -> list[Path]:
    """The databases of one run, oldest first."""
    found = []
    for path in sorted(
        directory.glob("*/run_operations.sqlite3"), key=lambda path: int(path.parent.name.split("_")[-1])
    ):
        with closing(sqlite3.connect(path)) as connection:
            if connection.execute("SELECT run_id FROM metadata").fetchone() == (run_id,):
                found.append(path)
    return found


def read_run(directory: Path, run_id: str) -> ServerRun:
    """What a server would have after all databases of the run, but with every point, whatever its step."""
    run = ServerRun(run_id, "")
    for database in databases(directory, run_id):
        for operation in operations(database):
            if isinstance(operation, Run):
                run.created += 1
                run.experiment = operation.experiment_id or run.experiment
            else:
                _apply(run, operation)
    return run


def uploads(directory: Path, run_id: str) -> dict[str, bytes]:
    """Destination -> content of the files that wait for upload."""
    found = {}
    for database in databases(directory, run_id):
        with closing(sqlite3.connect(database)) as connection:
            for source, destination in connection.execute("SELECT source_path, destination FROM file_upload_requests"):
                found[destination] = Path(source).read_bytes()
    return found


def stored_run(run: ServerRun, files: Mapping[str, bytes]) -> StoredRun:
    """The form that the conformance suite compares. `files`: destination -> content."""
    metrics: dict[str, list[Point]] = {}
    texts: dict[str, list[tuple[float | None, str]]] = {}
    histograms: dict[str, list[tuple[float, list[float], list[float]]]] = {}
    artifacts: dict[str, bytes | None] = {}
    for name, points in run.series.items():
        for step, value, time in points:
            if isinstance(value, float):
                metrics.setdefault(name, []).append(Point(step, value, time))
            elif isinstance(value, str):
                texts.setdefault(name, []).append((step, value))
            elif "edges" in value:
                histograms.setdefault(name, []).append((step, value["edges"], value["counts"]))
            else:
                artifacts[name] = files.get(value["path"])
    params = {}
    for name, value in run.attributes.items():
        if isinstance(value, dict):
            artifacts[name] = files.get(value["path"])
        else:
            params[name] = value
        if isinstance(value, str):
            texts.setdefault(name, []).append((None, value))
    metrics, texts, histograms, artifacts = map(_without_kind, (metrics, texts, histograms, artifacts))
    whole = artifacts.get("tracker_bridge/params")
    prefix = "tracker_bridge/names/"
    return StoredRun(
        metrics=metrics,
        renamed={name.removeprefix(prefix): old for name, old in params.items() if name.startswith(prefix)},
        params=params,
        full_params=None if whole is None else json.loads(whole),
        tags=dict(_split(tag) for tag in run.tags.get("sys/tags", ())),
        texts=texts,
        histograms=histograms,
        artifacts=artifacts,
        status=params.get("tracker_bridge/status"),
        context={
            "script": params.get("source_code/run_command", "").split(" ")[0],
            "host": params.get("runtime/host"),
            "user": params.get("runtime/user"),
            "git_commit": params.get("source_code/commit/commit_id"),
        },
    )


def _without_kind(named: dict[str, Any]) -> dict[str, Any]:
    # The adapter puts the kind at the end of a name that is used for two kinds.
    ends = ("/value", "/text", "/texts", "/histogram", "/file", "/files")
    plain = {name: next((name[: -len(end)] for end in ends if name.endswith(end)), name) for name in named}
    return {plain[name]: value for name, value in named.items()}


def _apply(run: ServerRun, update: UpdateRunSnapshot) -> None:
    step = update.step.whole + update.step.micro / 1e6
    time = update.timestamp.seconds + update.timestamp.nanos / 1e9
    for name, value in update.append.items():
        run.series.setdefault(name, []).append((step, plain_value(value), time))
    for name, value in update.assign.items():
        run.attributes[name] = plain_value(value)
    for name, change in update.modify_sets.items():
        tags = run.tags.setdefault(name, set())
        for tag, what in change.string.values.items():
            (tags.add if what == SET_OPERATION.ADD else tags.discard)(tag)


def _split(tag: str) -> tuple[str, Any]:
    name, separator, value = tag.partition(":")
    return (name, value) if separator else (tag, None)
