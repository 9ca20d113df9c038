"""The fluent API: functions about the run that is active on this thread. Follows MLflow 3.17.

The stack of active runs belongs to a thread; logging without an active run begins one, as in MLflow.
"""
# ruff: noqa: ARG001 - the signatures are MLflow's

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal

from tracker_bridge.compat import _core
from tracker_bridge.compat._coverage import say_once
from tracker_bridge.compat.mlflow import _runs
from tracker_bridge.compat.mlflow._runs import Held
from tracker_bridge.compat.mlflow.entities import Experiment, Run
from tracker_bridge.compat.mlflow.exceptions import MlflowException

_MLFLOW_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


class ActiveRun(Run):
    """A run that is active on this thread, as it was at this call; as a context manager it ends itself."""

    def __init__(self, held: Held) -> None:
        now = held.as_run()
        super().__init__(now.info, now.data)
        self._held = held

    def __enter__(self) -> ActiveRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        if any(held is self._held for held in _local.stack):
            end_run(_MLFLOW_STATUS[_core.status_of(error)])
        return False


class RunOperations:
    """What an asynchronous logging call gives; there is nothing to wait for."""

    def wait(self) -> None:
        """Nothing: it was written when the call returned."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[Held] = []
        self.last: Held | None = None


_local = _Local()
_experiment: Experiment | None = None
_uri: str | None = None
_registry_uri: str | None = None


# --- where things are


def set_tracking_uri(uri: Any) -> None:
    """Kept for `get_tracking_uri`; where runs go is the configuration's business."""
    global _uri
    _uri = str(uri)
    say_once("mlflow: set_tracking_uri: where runs go is the configuration's business (backends: mlflow: tracking_uri)")


def get_tracking_uri() -> str:
    """What the script or `MLFLOW_TRACKING_URI` says."""
    return _uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"


def is_tracking_uri_set() -> bool:
    """Whether the script or the environment says where."""
    return _uri is not None or "MLFLOW_TRACKING_URI" in os.environ


def set_registry_uri(uri: str) -> None:
    """Kept for `get_registry_uri`."""
    global _registry_uri
    _registry_uri = uri


def get_registry_uri() -> str:
    """What the script says."""
    return _registry_uri or get_tracking_uri()


def set_experiment(
    experiment_name: str | None = None, experiment_id: str | None = None, trace_location: Any = None
) -> Experiment:
    """Make an experiment that of the coming runs: their project. Raises `MlflowException` unless one is named."""
    global _experiment
    if (experiment_name is None) == (experiment_id is None):
        raise MlflowException("Must specify exactly one of: `experiment_id` or `experiment_name`.")
    _experiment = _runs.experiment_named(experiment_name) if experiment_name else get_experiment(str(experiment_id))
    return _experiment


def create_experiment(
    name: str, artifact_location: str | None = None, tags: Mapping[str, Any] | None = None, trace_location: Any = None
) -> str:
    """The id of a new experiment. Raises `MlflowException` if this process has it already."""
    if _runs.known_experiment(name) is not None:
        raise MlflowException(f"Experiment '{name}' already exists.", "RESOURCE_ALREADY_EXISTS")
    return _runs.experiment_named(name).experiment_id


def get_experiment(experiment_id: str) -> Experiment:
    """An experiment that this process has made. Raises `MlflowException` if it has not."""
    found = _runs.experiments.get(str(experiment_id))
    if found is None:
        raise MlflowException(f"No Experiment with id={experiment_id} exists", "RESOURCE_DOES_NOT_EXIST")
    return found


def get_experiment_by_name(name: str) -> Experiment | None:
    """An experiment that this process has made, or None."""
    return _runs.known_experiment(name)


# --- runs


def start_run(
    run_id: str | None = None,
    experiment_id: str | None = None,
    run_name: str | None = None,
    nested: bool = False,
    parent_run_id: str | None = None,
    tags: Mapping[str, Any] | None = None,
    description: str | None = None,
    log_system_metrics: bool | None = None,
) -> ActiveRun:
    """Begin a run, or continue one, and make it this thread's active run."""
    stack = _local.stack
    if stack and not nested:
        raise Exception(
            f"Run with UUID {stack[0].info.run_id} is already active. To start a new run, first end the "
            "current run with mlflow.end_run(). To start a nested run, call start_run with nested=True"
        )
    run_id = run_id or os.environ.pop("MLFLOW_RUN_ID", None)
    parent = stack[-1] if stack else (_runs.known_run(parent_run_id) if parent_run_id else None)
    name = run_name or (tags or {}).get("mlflow.runName") or os.environ.get("MLFLOW_RUN_NAME")
    held = _runs.begin_run(
        get_experiment(str(experiment_id)) if experiment_id is not None else _experiment_now(),
        name=name,
        run_id=run_id,
        parent=None if run_id else parent,
        tags=tags,
        description=description,
    )
    if log_system_metrics:
        held.leave_out("system metrics", "are not measured here")
    stack.append(held)
    return ActiveRun(held)


def end_run(status: str = "FINISHED") -> None:
    """End this thread's active run, if there is one."""
    if _local.stack:
        held = _local.last = _local.stack.pop()
        held.end(status)


def active_run() -> ActiveRun | None:
    """This thread's active run."""
    return ActiveRun(_local.stack[-1]) if _local.stack else None


def last_active_run() -> Run | None:
    """The active run, or the one that was active last on this thread."""
    held = _local.stack[-1] if _local.stack else _local.last
    return None if held is None else held.as_run()


def get_run(run_id: str) -> Run:
    """A run of this process as it is now. Raises `MlflowException` for others."""
    return _runs.known_run(run_id).as_run()


def get_parent_run(run_id: str) -> Run | None:
    """The run in which a run of this process is nested."""
    parent = _runs.known_run(run_id).data.tags.get("mlflow.parentRunId")
    return None if parent is None else get_run(parent)


# --- logging


def log_metric(
    key: str,
    value: float,
    step: int | None = None,
    synchronous: bool | None = None,
    timestamp: int | None = None,
    run_id: str | None = None,
    model_id: str | None = None,
    dataset: Any = None,
) -> RunOperations | None:
    """Log one value. `timestamp` in milliseconds."""
    _held(run_id).log_metrics({key: value}, step, timestamp, "log_metric")
    return _operations(synchronous)


def log_metrics(
    metrics: Mapping[str, float],
    step: int | None = None,
    synchronous: bool | None = None,
    run_id: str | None = None,
    timestamp: int | None = None,
    model_id: str | None = None,
    dataset: Any = None,
) -> RunOperations | None:
    """Log values of one step."""
    _held(run_id).log_metrics(metrics, step, timestamp, "log_metrics")
    return _operations(synchronous)


def log_param(key: str, value: Any, synchronous: bool | None = None) -> Any:
    """Log a param; returns its value. Raises `MlflowException` if it has another one already."""
    _held().log_params({key: value}, "log_param")
    return RunOperations() if synchronous is False else value


def log_params(
    params: Mapping[str, Any], synchronous: bool | None = None, run_id: str | None = None
) -> RunOperations | None:
    """Log params. Raises `MlflowException` if one has another value already."""
    _held(run_id).log_params(params, "log_params")
    return _operations(synchronous)


def set_tag(key: str, value: Any, synchronous: bool | None = None) -> RunOperations | None:
    """Set a tag."""
    _held().set_tags({key: value}, "set_tag")
    return _operations(synchronous)


def set_tags(tags: Mapping[str, Any], synchronous: bool | None = None) -> RunOperations | None:
    """Set tags."""
    _held().set_tags(tags, "set_tags")
    return _operations(synchronous)


def delete_tag(key: str) -> None:
    """Delete a tag. Raises `MlflowException` if it is not set."""
    _held().delete_tag(key)


def log_artifact(local_path: Any, artifact_path: str | None = None, run_id: str | None = None) -> None:
    """Keep a file (or folder), in `artifact_path`."""
    _held(run_id).log_artifact(local_path, artifact_path)


def log_artifacts(local_dir: Any, artifact_path: str | None = None, run_id: str | None = None) -> None:
    """Keep every file below a folder."""
    _held(run_id).log_artifacts(local_dir, artifact_path)


def log_text(text: str, artifact_file: str, run_id: str | None = None) -> None:
    """Keep a text as a file."""
    _held(run_id).log_text(text, artifact_file)


def log_dict(dictionary: Any, artifact_file: str, run_id: str | None = None) -> None:
    """Keep a dictionary as a file."""
    _held(run_id).log_dict(dictionary, artifact_file)


def log_figure(figure: Any, artifact_file: str, *, save_kwargs: Mapping[str, Any] | None = None) -> None:
    """Keep a figure as a file."""
    _held().log_figure(figure, artifact_file, save_kwargs)


def log_image(
    image: Any,
    artifact_file: str | None = None,
    key: str | None = None,
    step: int | None = None,
    timestamp: int | None = None,
    synchronous: bool | None = False,
) -> None:
    """Keep an image as a PNG file."""
    _held().log_image(image, artifact_file, key, step)


def log_table(data: Any, artifact_file: str, run_id: str | None = None) -> None:
    """Keep a table as a JSON file."""
    _held(run_id).log_table(data, artifact_file)


def get_artifact_uri(artifact_path: str | None = None) -> str:
    """Where the run's own copies of its files lie."""
    return _held().artifact_uri(artifact_path)


# --- what is left out, reported


def leaving_out(call: str, why: str, answer: Any = None) -> Callable[..., Any]:
    """A function that reports once that it does nothing."""

    def leave_out(*_args: Any, **_kwargs: Any) -> Any:
        if _local.stack:
            _local.stack[-1].leave_out(call, why)
        else:
            say_once(f"mlflow: {call}: {why}")
        return answer

    leave_out.__name__ = leave_out.__qualname__ = call.rpartition(".")[2]
    return leave_out


def trace(function: Any = None, **_kwargs: Any) -> Any:
    """The function itself: traces are left out."""
    say_once("mlflow: trace: traces are left out")
    return function if callable(function) else lambda inner: inner


class _NoSpan:
    """Takes what a span takes."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


@contextlib.contextmanager
def start_span(name: str = "span", **_kwargs: Any) -> Iterator[_NoSpan]:
    """A span that goes nowhere: traces are left out."""
    say_once("mlflow: start_span: traces are left out")
    yield _NoSpan()


def flush_async_logging() -> None:
    """Nothing waits to be flushed."""


def _held(run_id: str | None = None) -> Held:
    if run_id is not None:
        return _runs.find_run(run_id)
    if not _local.stack:
        start_run()
    return _local.stack[-1]


def _experiment_now() -> Experiment | None:
    if _experiment is not None:
        return _experiment
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    return _runs.experiment_named(name) if name else None


def _operations(synchronous: bool | None) -> RunOperations | None:
    return RunOperations() if synchronous is False else None
