"""Reads what MLflow holds of a run, with its own client and nothing of the adapter's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from mlflow import MlflowClient

from tracker_bridge.testing import Point, StoredRun

OWN = ("mlflow.", "tracker_bridge.", "param_changed.", "alert.")
_CONTEXT = ("script", "host", "user", "git_commit")


class _Histories(Mapping[str, list[Point]]):
    """The points of each metric, read when they are asked for: each is a request to the server."""

    def __init__(self, client: MlflowClient, run_id: str, names: tuple[str, ...]) -> None:
        self._client, self._run_id, self._names = client, run_id, names

    def __getitem__(self, name: str) -> list[Point]:
        if name not in self._names:
            raise KeyError(name)
        history = self._client.get_metric_history(self._run_id, name)
        return sorted(Point(metric.step, metric.value, metric.timestamp / 1e3) for metric in history)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def artifacts(client: MlflowClient, run_id: str, folder: Path) -> dict[str, bytes]:
    """Path -> content of everything below the run's artifacts."""
    root = Path(client.download_artifacts(run_id, "", str(folder)))
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def stored_run(client: MlflowClient, run_id: str, folder: Path) -> StoredRun:
    """The form that the conformance suite compares; artifacts are downloaded into `folder`, which is empty."""
    run = client.get_run(run_id)
    tags = run.data.tags
    files = artifacts(client, run_id, folder)
    texts: dict[str, list[tuple[float | None, str]]] = {}
    histograms: dict[str, list[tuple[float, list[float], list[float]]]] = {}
    for path in sorted(files):
        head, _, rest = path.partition("/")
        if head == "texts":
            name, _, number = rest.removesuffix(".txt").rpartition("/")
            step = int(number) if number.isdigit() and len(number) == 12 else None
            texts.setdefault(name if step is not None else rest.removesuffix(".txt"), []).append(
                (step, files[path].decode())
            )
        if head == "histograms":
            content = json.loads(files[path])
            histograms.setdefault(content["name"], []).append((content["step"], content["edges"], content["counts"]))
    known = {"script": "mlflow.source.name", "user": "mlflow.user", "git_commit": "mlflow.source.git.commit"}
    own_id = tags["tracker_bridge.run_id"]
    same = client.search_runs([run.info.experiment_id], f"tags.`tracker_bridge.run_id` = '{own_id}'")
    return StoredRun(
        metrics=_Histories(client, run_id, tuple(run.data.metrics)),
        renamed=json.loads(files.get("tracker_bridge/names.json", b"{}")),
        params=run.data.params,
        changed_params={
            key.removeprefix("param_changed."): value for key, value in tags.items() if key.startswith("param_changed.")
        },
        full_params=json.loads(files["params.json"]) if "params.json" in files else None,
        tags=user_tags(tags),
        texts=texts,
        histograms=histograms,
        artifacts=files,
        status=run.info.status,
        context={key: tags.get(known.get(key, f"tracker_bridge.{key}")) for key in _CONTEXT},
        runs=len(same),
    )


def user_tags(tags: Mapping[str, str]) -> dict[str, str | None]:
    return {key: None if value == "true" else value for key, value in tags.items() if not key.startswith(OWN)}
