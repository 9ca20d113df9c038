"""Any store that MLflow's own client can reach (a tracking server, PostgreSQL, Databricks). Needs mlflow(-skinny)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tracker_bridge.importers._files import safe_name
from tracker_bridge.importers._mlflow_store import Description, restored_value
from tracker_bridge.importers._model import ForeignRun, Reading
from tracker_bridge.importers._optional import needed
from tracker_bridge.importers._plain import clean
from tracker_bridge.importers._sorter import PointSorter
from tracker_bridge.records import Metrics

_PAGE = 200
_INSTALL = "tracker-bridge[mlflow-http]"


def server_runs(kind: str, uri: str) -> Iterator[ForeignRun]:
    """The active runs of all active experiments, oldest first. Raises what the client raises."""
    client = _client(uri)
    for experiment in _paged(client.search_experiments):
        search = client.search_runs
        order = ["attributes.start_time ASC"]
        for run in _paged(search, experiment_ids=[experiment.experiment_id], order_by=order):
            info = run.info
            yield ForeignRun(
                kind=kind,
                paths=(uri,),
                identity=(str(info.run_id),),
                fingerprint=f"{info.status}:{info.end_time}:{len(run.data.metrics)}",
                experiment=clean(str(experiment.name)),
                name=clean(str(info.run_name or info.run_id)),
                details={"store": "server"},
            )


def open_server(run: ForeignRun, reading: Reading, stack: ExitStack) -> ServerStore:
    """The run at its server."""
    return ServerStore(run, reading, stack.enter_context(PointSorter()))


class ServerStore:
    """One run behind MLflow's client."""

    def __init__(self, run: ForeignRun, reading: Reading, sorter: PointSorter) -> None:
        self._client = _client(run.paths[0])
        self._run_id = run.identity[0]
        self._reading = reading
        self._sorter = sorter
        self._names: list[str] = []

    def describe(self) -> Description:
        run = self._client.get_run(self._run_id)
        info, data = run.info, run.data
        self._names = sorted(data.metrics)
        return Description(
            self._run_id, str(info.experiment_id), str(info.status), info.start_time, info.end_time,
            str(info.artifact_uri or ""), dict(data.params), dict(data.tags),
        )  # fmt: skip

    def metrics(self) -> Iterator[Metrics]:
        for name in self._names:
            history = self._client.get_metric_history(self._run_id, name)
            self._sorter.add(
                np.array([point.timestamp for point in history], dtype=np.int64) * 1_000_000,
                np.array([point.step for point in history], dtype=np.int64),
                0,
                self._sorter.name_id(clean(name)),
                np.array([restored_value(point.value) for point in history], dtype=np.float64),
            )
        return self._sorter.rows()

    def artifact_folders(self) -> Iterator[Path]:
        scratch = self._reading.scratch
        if scratch is None:
            self._reading.left_out["artifacts of a server (no folder for files)"] += 1
            return
        target = scratch / "artifacts"
        target.mkdir(parents=True, exist_ok=True)
        for path in self._listed(""):
            # The server names the files; where they go is decided here.
            place = (target / safe_name(path)).parent
            place.mkdir(parents=True, exist_ok=True)
            try:
                self._client.download_artifacts(self._run_id, path, str(place))
            except Exception as error:  # whatever the artifact store raises costs this file only
                reason = f"artifacts that could not be fetched ({type(error).__name__})"
                self._reading.left_out[reason] += 1
        _flatten(target)
        yield target

    def _listed(self, folder: str) -> Iterator[str]:
        for entry in self._client.list_artifacts(self._run_id, folder or None):
            if entry.is_dir:
                yield from self._listed(entry.path)
            else:
                yield entry.path


def _client(uri: str) -> Any:
    return needed("mlflow", _INSTALL).MlflowClient(uri)


def _paged(search: Any, **arguments: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(max_results=_PAGE, page_token=token, **arguments)
        yield from page
        token = page.token
        if not token:
            return


def _flatten(target: Path) -> None:
    """The client repeats the artifact's folders below the given one; undo that (`a/b/a/b/c` is `a/b/c`)."""
    for path in sorted(target.rglob("*")):
        if path.is_file():
            parts = path.relative_to(target).parts
            half = len(parts) // 2
            if len(parts) % 2 and half and parts[:half] == parts[half : 2 * half]:
                path.replace(target.joinpath(*parts[half:]))
