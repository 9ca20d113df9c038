"""The runs and experiments that this process has begun through the MLflow shim, by MLflow's ids.

A run that ended is continued when it is logged to again, as MLflow lets it. What MLflow would refuse is refused here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracker_bridge.compat import _core, _media
from tracker_bridge.compat.mlflow.entities import Experiment, Run, RunData, RunInfo
from tracker_bridge.compat.mlflow.exceptions import MlflowException

__all__ = ["Held", "begin_run", "experiment_named", "experiments", "find_run", "known_experiment"]

TRACKER = "mlflow"
DEFAULT = Experiment("0", "Default")
_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "killed"}

experiments: dict[str, Experiment] = {DEFAULT.experiment_id: DEFAULT}
_runs: dict[str, Held] = {}


class Held:
    """One run: its session, and what MLflow needs to know of what was logged."""

    def __init__(self, session: _core.Session, info: RunInfo) -> None:
        self._session = session
        self.info = info
        self.data = RunData()
        self._counts: dict[str, int] = {}

    @property
    def session(self) -> _core.Session:
        """The session; a new one that continues the run if it had ended."""
        if self._session.ended:
            self._session = _core.begin(TRACKER, run_id=self._session.id)
            self.info.status, self.info.end_time = "RUNNING", None
        return self._session

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self._session.ended

    def as_run(self) -> Run:
        """The run as MLflow shows it now."""
        data = RunData(
            {key: float(value) for key, value in self.data.metrics.items()},
            dict(self.data.params),
            dict(self.data.tags),
        )
        return Run(dataclasses.replace(self.info), data)

    def log_metrics(self, values: Mapping[str, Any], step: Any, timestamp: Any, call: str) -> None:
        """Log values of one step; None: the number of values that the metric has had (MLflow puts all at 0)."""
        session = self.session
        number = max((self._counts.get(key, 0) for key in values), default=0) if step is None else _step(step)
        try:
            session.run.log_metrics(values, number, timestamp=None if timestamp is None else timestamp / 1000.0)
        except (TypeError, ValueError) as error:
            raise MlflowException(str(error), "INVALID_PARAMETER_VALUE") from None
        for key, value in values.items():
            self._counts[key] = number + 1
            # A tensor is read when somebody asks.
            self.data.metrics[key] = value.detach() if hasattr(value, "detach") else value
        session.coverage.translate(call)

    def log_params(self, params: Mapping[str, Any], call: str) -> None:
        """Log params. Raises `MlflowException` if one is to change."""
        for key, value in params.items():
            known = self.data.params.get(str(key))
            if known is not None and known != str(value):
                raise MlflowException(
                    f"Changing param values is not allowed. Param with key='{key}' was already logged with "
                    f"value='{known}' for run ID='{self.info.run_id}'. Attempted logging new value '{value}'.",
                    "INVALID_PARAMETER_VALUE",
                )
        self.session.run.log_params(params)
        self.data.params |= {str(key): str(value) for key, value in params.items()}
        self._session.coverage.translate(call)

    def set_tags(self, tags: Mapping[str, Any], call: str) -> None:
        """Set key/value tags."""
        texts = {str(key): str(value) for key, value in tags.items()}
        self.session.run.add_tags(dict(texts))
        self.data.tags |= texts
        self._session.coverage.translate(call)

    def delete_tag(self, key: str) -> None:
        """Delete a tag. Raises `MlflowException` if it is not set."""
        if key not in self.data.tags:
            raise MlflowException(
                f"No tag with name: {key} in run with id {self.info.run_id}", "RESOURCE_DOES_NOT_EXIST"
            )
        del self.data.tags[key]
        self.session.run.remove_tags(key)
        self._session.coverage.translate("delete_tag")

    def log_artifact(self, local_path: Any, artifact_path: str | None, call: str = "log_artifact") -> None:
        """Keep a file, or every file below a folder (under the folder's name)."""
        path = Path(local_path)
        if path.is_dir():
            self.session.keep_folder(path, _joined(artifact_path, path.name))
        elif path.is_file():
            self.session.keep_file(path, _joined(artifact_path, path.name))
        else:
            raise MlflowException(f"No such artifact: {local_path!r}", "INVALID_PARAMETER_VALUE")
        self._session.coverage.translate(call)

    def log_artifacts(self, local_dir: Any, artifact_path: str | None) -> None:
        """Keep every file below a folder."""
        if not Path(local_dir).is_dir():
            raise MlflowException(f"No such directory: {local_dir!r}", "INVALID_PARAMETER_VALUE")
        self.session.keep_folder(local_dir, artifact_path or "")
        self._session.coverage.translate("log_artifacts")

    def log_text(self, text: str, artifact_file: str) -> None:
        """Keep a text as a file."""
        self._keep(text.encode("utf-8", "replace"), artifact_file, ".txt", "log_text")

    def log_dict(self, dictionary: Any, artifact_file: str) -> None:
        """Keep a dictionary as a JSON or (by the file's ending) YAML file."""
        if Path(artifact_file).suffix in (".yml", ".yaml"):
            import io

            from ruamel.yaml import YAML

            stream = io.BytesIO()
            YAML(typ="safe").dump(dictionary, stream)
            content = stream.getvalue()
        else:
            content = json.dumps(dictionary, indent=2, default=str).encode()
        self._keep(content, artifact_file, ".json", "log_dict")

    def log_figure(self, figure: Any, artifact_file: str, save_kwargs: Mapping[str, Any] | None = None) -> None:
        """Keep a matplotlib figure in the format of the file's ending, a Plotly figure as HTML or JSON."""
        if _media.is_figure(figure):
            import io

            stream = io.BytesIO()
            kind = Path(artifact_file).suffix.lstrip(".") or "png"
            figure.savefig(stream, **{"format": kind, **(save_kwargs or {})})
            content = stream.getvalue()
        elif hasattr(figure, "to_html"):
            as_json = artifact_file.endswith(".json")
            content = (figure.to_json() if as_json else figure.to_html(include_plotlyjs="cdn")).encode()
        else:
            raise TypeError(f"Unsupported figure object type: '{type(figure)}'")
        self._keep(content, artifact_file, ".png", "log_figure")

    def log_image(self, image: Any, artifact_file: str | None, key: str | None, step: Any) -> None:
        """Keep an image as a PNG file, under a file's name or under a key and a step."""
        if (artifact_file is None) == (key is None):
            raise TypeError("Exactly one of `artifact_file` and `key` must be given")
        content = _media.image_png(getattr(image, "image", image))
        if artifact_file is not None:
            if not artifact_file.lower().endswith(".png"):
                artifact_file = f"{artifact_file}.png"
                self.session.coverage.degrade("log_image", "is a PNG file")
            self._keep(content, artifact_file, ".png", "log_image")
        else:
            number = self._counts.get(f"image {key}", 0) if step is None else _step(step)
            self._counts[f"image {key}"] = number + 1
            self.session.keep_bytes(content, f"images/{key}.png", ".png", number)
            self._session.coverage.translate("log_image")

    def log_table(self, data: Any, artifact_file: str) -> None:
        """Keep a table as JSON; each call is a file of its own, where MLflow appends."""
        if hasattr(data, "to_dict"):
            data = data.to_dict("list")
        columns = list(data)
        lists = [value if isinstance(value, (list, tuple)) else [value] for value in data.values()]
        rows = [list(row) for row in zip(*lists, strict=False)]
        content = json.dumps({"columns": columns, "data": rows}, default=str).encode()
        self._keep(content, artifact_file, ".json", "log_table")
        self._session.coverage.degrade("log_table", "each call is a file of its own; MLflow appends to one")

    def artifact_uri(self, artifact_path: str | None = None) -> str:
        """Where the run's own copies of its files lie."""
        return self.info.artifact_uri + (f"/{artifact_path}" if artifact_path else "")

    def end(self, status: str) -> None:
        """End the run with one of MLflow's states."""
        if not self.ended:
            self._session.end(_STATUS.get(status, "finished"))
            self.info.status, self.info.end_time = status, _now_ms()

    def leave_out(self, call: str, why: str) -> None:
        """Report what is not carried."""
        self.session.coverage.leave_out(call, why)

    def _keep(self, content: bytes, name: str, suffix: str, call: str) -> None:
        name = _checked_path(name)
        self.session.keep_bytes(content, name, Path(name).suffix or suffix)
        self._session.coverage.translate(call)


def begin_run(
    experiment: Experiment | None,
    *,
    name: str | None = None,
    run_id: str | None = None,
    parent: Held | None = None,
    tags: Mapping[str, Any] | None = None,
    description: str | None = None,
) -> Held:
    """Begin a run, or continue the one with `run_id`."""
    if run_id is not None and run_id in _runs:
        held = _runs[run_id]
        held.session  # noqa: B018 - continues it
        if tags:
            held.set_tags(tags, "start_run")
        return held
    texts = {str(key): str(value) for key, value in (tags or {}).items()}
    if parent is not None:
        texts["parent_run"] = parent.info.run_id
    if description is not None:
        texts["mlflow.note.content"] = description
    project = None if experiment is None or experiment == DEFAULT else experiment.name
    session = _core.begin(TRACKER, project=project, name=name, run_id=run_id, tags=texts)
    info = RunInfo(
        run_id=session.id,
        run_name=name or session.id,
        experiment_id=(experiment or DEFAULT).experiment_id,
        artifact_uri=(session.place() / "files").as_uri(),
        start_time=_now_ms(),
    )
    held = _runs[session.id] = Held(session, info)
    held.data.tags |= {"mlflow.runName": info.run_name, **texts}
    if parent is not None:
        held.data.tags["mlflow.parentRunId"] = parent.info.run_id
        session.coverage.degrade("nested run", "is a run of its own with the tag parent_run")
    return held


def find_run(run_id: str) -> Held:
    """The run with this id, begun here; one from elsewhere is continued."""
    return _runs[run_id] if run_id in _runs else begin_run(None, run_id=run_id)


def known_run(run_id: str) -> Held:
    """The run with this id, begun here. Raises `MlflowException` if there is none."""
    if run_id not in _runs:
        raise MlflowException(
            f"Run '{run_id}' not found: only runs of this process can be read here; "
            "use tracker_bridge.read(run_dir) for others",
            "RESOURCE_DOES_NOT_EXIST",
        )
    return _runs[run_id]


def experiment_named(name: str) -> Experiment:
    """The experiment of that name, made if need be; its id is the same in every process."""
    for known in experiments.values():
        if known.name == name:
            return known
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest()
    number = str(int.from_bytes(digest, "big") % 10**18)
    made = experiments[number] = Experiment(number, name, creation_time=_now_ms())
    return made


def known_experiment(name: str) -> Experiment | None:
    """The experiment of that name, if this process has made it."""
    return next((known for known in experiments.values() if known.name == name), None)


def _step(step: Any) -> int:
    number = float(step)
    if not math.isfinite(number):
        raise MlflowException(f"Got invalid value {step} for parameter 'step'", "INVALID_PARAMETER_VALUE")
    return int(step)


def _joined(folder: str | None, name: str) -> str:
    return f"{_checked_path(folder)}/{name}" if folder else name


def _checked_path(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise MlflowException(f"Invalid artifact path: '{path}'", "INVALID_PARAMETER_VALUE")
    return os.path.normpath(path).replace(os.sep, "/")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
