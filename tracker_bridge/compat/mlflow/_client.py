"""`MlflowClient`: logging to runs by their id. Whatever asks a server raises `NotImplementedError`."""
# ruff: noqa: ARG002 - the signatures are MLflow's

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracker_bridge.compat._core import unsupported
from tracker_bridge.compat.mlflow import _fluent, _runs
from tracker_bridge.compat.mlflow.entities import Experiment, Metric, Param, Run, RunTag

__all__ = ["MlflowClient"]


class MlflowClient:
    """Logs to runs of this process, and continues others."""

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        self._tracking_uri = tracking_uri

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return unsupported("mlflow", f"MlflowClient.{name}")

    @property
    def tracking_uri(self) -> str:
        """What the script says."""
        return self._tracking_uri or _fluent.get_tracking_uri()

    def create_experiment(
        self, name: str, artifact_location: str | None = None, tags: Mapping[str, Any] | None = None
    ) -> str:
        """See `mlflow.create_experiment`."""
        return _fluent.create_experiment(name, artifact_location, tags)

    def get_experiment(self, experiment_id: str) -> Experiment:
        """See `mlflow.get_experiment`."""
        return _fluent.get_experiment(experiment_id)

    def get_experiment_by_name(self, name: str) -> Experiment | None:
        """See `mlflow.get_experiment_by_name`."""
        return _fluent.get_experiment_by_name(name)

    def create_run(
        self,
        experiment_id: str,
        start_time: int | None = None,
        tags: Mapping[str, Any] | None = None,
        run_name: str | None = None,
    ) -> Run:
        """Begin a run that is not active on any thread."""
        name = run_name or (tags or {}).get("mlflow.runName")
        return _runs.begin_run(_fluent.get_experiment(experiment_id), name=name, tags=tags).as_run()

    def get_run(self, run_id: str) -> Run:
        """See `mlflow.get_run`."""
        return _fluent.get_run(run_id)

    def log_metric(
        self,
        run_id: str,
        key: str,
        value: float,
        timestamp: int | None = None,
        step: int | None = None,
        synchronous: bool | None = None,
        **_kwargs: Any,
    ) -> None:
        """Log one value."""
        _runs.find_run(run_id).log_metrics({key: value}, step, timestamp, "log_metric")

    def log_param(self, run_id: str, key: str, value: Any, synchronous: bool | None = None) -> Any:
        """Log a param."""
        _runs.find_run(run_id).log_params({key: value}, "log_param")
        return value

    def set_tag(self, run_id: str, key: str, value: Any, synchronous: bool | None = None) -> None:
        """Set a tag."""
        _runs.find_run(run_id).set_tags({key: value}, "set_tag")

    def delete_tag(self, run_id: str, key: str) -> None:
        """Delete a tag."""
        _runs.find_run(run_id).delete_tag(key)

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[RunTag] = (),
        synchronous: bool | None = None,
    ) -> None:
        """Log many things."""
        held = _runs.find_run(run_id)
        rows: dict[tuple[int, int], dict[str, float]] = {}
        for metric in metrics:
            rows.setdefault((metric.step, metric.timestamp), {})[metric.key] = metric.value
        for (step, timestamp), values in rows.items():
            held.log_metrics(values, step, timestamp or None, "log_batch")
        if params:
            held.log_params({param.key: param.value for param in params}, "log_batch")
        if tags:
            held.set_tags({tag.key: tag.value for tag in tags}, "log_batch")

    def log_artifact(self, run_id: str, local_path: Any, artifact_path: str | None = None) -> None:
        """Keep a file."""
        _runs.find_run(run_id).log_artifact(local_path, artifact_path)

    def log_artifacts(self, run_id: str, local_dir: Any, artifact_path: str | None = None) -> None:
        """Keep every file below a folder."""
        _runs.find_run(run_id).log_artifacts(local_dir, artifact_path)

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        """Keep a text as a file."""
        _runs.find_run(run_id).log_text(text, artifact_file)

    def log_dict(self, run_id: str, dictionary: Any, artifact_file: str) -> None:
        """Keep a dictionary as a file."""
        _runs.find_run(run_id).log_dict(dictionary, artifact_file)

    def log_figure(self, run_id: str, figure: Any, artifact_file: str, *, save_kwargs: Any = None) -> None:
        """Keep a figure as a file."""
        _runs.find_run(run_id).log_figure(figure, artifact_file, save_kwargs)

    def log_image(
        self, run_id: str, image: Any, artifact_file: str | None = None, key: str | None = None, step: Any = None
    ) -> None:
        """Keep an image as a PNG file."""
        _runs.find_run(run_id).log_image(image, artifact_file, key, step)

    def log_table(self, run_id: str, data: Any, artifact_file: str) -> None:
        """Keep a table as a JSON file."""
        _runs.find_run(run_id).log_table(data, artifact_file)

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        """End a run."""
        _runs.known_run(run_id).end(status or "FINISHED")
