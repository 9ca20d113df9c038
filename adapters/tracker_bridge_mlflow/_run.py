"""One open run: a batch becomes few `log_batch` calls, and artifacts for what MLflow has no other place for."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Batch,
    HistogramItem,
    Item,
    NameMap,
    Opened,
    ParamsItem,
    Rejected,
    RetryLater,
    Row,
    RunInfo,
    TagsItem,
    TextItem,
    merge_params,
)
from tracker_bridge_mlflow._answers import error_code, is_refusal, is_timeout, later, short
from tracker_bridge_mlflow._fitting import (
    LONGEST_TAG,
    MOST_METRICS,
    MOST_PARAMS,
    MOST_TAGS,
    NAMES,
    chunks,
    cut,
    own_key,
    param_texts,
    tag_pairs,
)
from tracker_bridge_mlflow._identity import (
    STATUS_TAG,
    find_experiment,
    find_run,
    page,
    tracking_uri,
    without_credentials,
)
from tracker_bridge_mlflow._notes import load_notes, save_notes
from tracker_bridge_mlflow._options import MlflowOptions
from tracker_bridge_mlflow._waits import shorten_waits

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED", "crashed": "FAILED"}
_ARTIFACT_TRIES = 3
# With the tracking server in order: then it is the artifact store that lacks rights or a package, not the network.
_FEWEST_METRICS, _MANY_IN_TIME = 50, 20
# A server that needs longer than the time-out for a request gets smaller ones, and larger ones when it has recovered.
_NAMES_FILE, _PARAMS_FILE = "tracker_bridge/names.json", "params.json"

Point = tuple[int, int]
"""Number of a row in the batch, and slot in it."""


def open_run(options: MlflowOptions, run: RunInfo) -> RunWriter:
    """The writer for `run`. Raises `RetryLater`."""
    shorten_waits()
    uri = tracking_uri(options, run)
    if not uri.startswith(("http", "databricks")) and importlib.util.find_spec("sqlalchemy") is None:
        raise RetryLater(
            f"{without_credentials(uri)} needs all of MLflow, and only mlflow-skinny is installed: "
            'pip install "tracker-bridge[mlflow]" (with an http:// tracking_uri, tracker-bridge[mlflow-http] is enough)'
        )
    with _answers(uri):
        return RunWriter(MlflowClient(uri), uri, options, run)


@contextmanager
def _answers(uri: str) -> Iterator[None]:
    """Turns what the client and the network raise into `RetryLater`."""
    try:
        yield
    except (MlflowException, OSError) as error:
        raise later(error, uri) from error


@dataclass(slots=True)
class _Progress:
    """How far a batch has got: one that is tried again goes on there (storing twice is harmless, but slow)."""

    batch: Batch
    points: int = 0
    items: set[int] = field(default_factory=set)
    refused: list[tuple[Item, str]] = field(default_factory=list)
    bad: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)


class RunWriter:
    """Writes one run."""

    def __init__(self, client: MlflowClient, uri: str, options: MlflowOptions, run: RunInfo) -> None:
        self._client = client
        self._uri = uri
        self._private = run.private_dir
        experiment_id = find_experiment(client, options, run)
        self._id, self._ours = find_run(client, options, run, experiment_id)
        stored = client.get_run(self._id)
        if stored.info.lifecycle_stage != "active":
            raise RetryLater(f"run {self._id} is deleted: restore it (mlflow runs restore --run-id {self._id})")
        if self._ours and stored.info.status != "RUNNING":
            client.update_run(self._id, status="RUNNING")
        if self._ours and STATUS_TAG in stored.data.tags:
            client.delete_tag(self._id, STATUS_TAG)
        self._stored_params: dict[str, str] = dict(stored.data.params)
        self._params: dict[str, Any] = {}
        merge_params(self._params, run.params)
        self._notes = load_notes(run.private_dir)
        self._renamed_is_new = False
        self._most_metrics = MOST_METRICS
        self._in_time = 0
        self._artifact_names = NameMap(NAMES)
        self._artifact_failures: dict[int, int] = {}
        self._progress: _Progress | None = None
        ids = {
            "tracking_uri": without_credentials(uri),
            "experiment_id": stored.info.experiment_id,
            "run_id": self._id,
            "owner": "bridge" if self._ours else "other",
        }
        self.opened = Opened(ids, page(uri, stored.info.experiment_id, self._id))

    def write(self, batch: Batch) -> None:
        """Send metrics, then params and tags, then artifacts: none of them stops those before it."""
        done = self._progress
        if done is None or done.batch is not batch:
            done = self._progress = _Progress(batch)
        with _answers(self._uri):
            lost = self._write_metrics([item for item in batch.items if isinstance(item, Row)], done)
            for number, item in enumerate(batch.items):
                if not isinstance(item, Row) and number not in done.items:
                    problem = self._try_item(item)
                    if problem:
                        done.refused.append((item, problem))
                    done.items.add(number)
        self._progress = None
        self._notes.last_ns = max([self._notes.last_ns, *(item.time_ns for item in batch.items)])
        if not batch.renamed.items() <= self._notes.renamed.items():
            self._notes.renamed.update(batch.renamed)
            self._renamed_is_new = True
        refused = lost + done.refused
        if refused:
            raise Rejected([item for item, _ in refused], refused[0][1])

    def flush(self) -> None:
        """Send the names file if there are new ones."""
        with _answers(self._uri):
            save_notes(self._private, self._notes)
        if not self._renamed_is_new:
            return
        text = json.dumps(self._notes.renamed, ensure_ascii=True, indent=1, sort_keys=True)
        try:
            self._client.log_text(self._id, text, _NAMES_FILE)
        except Exception as error:
            # The data are stored; only an outage is worth waiting for.
            self._client_answers(error)
        self._renamed_is_new = False

    def close(self, status: str | None) -> None:
        """End the run with `status`, at the time of the last thing that was logged."""
        with _answers(self._uri):
            self.flush()
            if status is not None and self._ours:
                end_ms = (self._notes.last_ns or time.time_ns()) // 1_000_000
                self._client.set_terminated(self._id, _STATUS.get(status, "FAILED"), end_ms)
                if status == "crashed":
                    self._client.set_tag(self._id, STATUS_TAG, status)

    # --- metrics

    def _write_metrics(self, rows: Sequence[Row], done: _Progress) -> list[tuple[Item, str]]:
        """Log the rows; what MLflow refuses of them, with the reason."""
        points = _by_series(rows)
        while done.points < len(points):
            part = points[done.points : done.points + self._most_metrics]
            for (number, slot), reason in self._log_points(rows, part):
                done.bad.setdefault(number, []).append(slot)
                done.reasons[number] = reason
            done.points += len(part)
        lost: list[tuple[Item, str]] = []
        for number, slots in done.bad.items():
            row = rows[number]
            names = tuple(row.names[slot] for slot in slots)
            part_of_row = Row(row.sequence, row.time_ns, row.step, names, row.values[slots], row.late)
            lost.append((row if len(slots) == len(row.names) else part_of_row, done.reasons[number]))
        return lost

    def _log_points(self, rows: Sequence[Row], points: Sequence[Point]) -> Iterator[tuple[Point, str]]:
        """Log the points; yields those that MLflow refuses (a request is stored whole or not at all)."""
        metrics = [_metric(rows[row], slot) for row, slot in points]
        try:
            self._client.log_batch(self._id, metrics=metrics, synchronous=True)
        except (MlflowException, ValueError, OverflowError) as error:
            if is_timeout(error):
                self._most_metrics = max(_FEWEST_METRICS, self._most_metrics // 2)
                self._in_time = 0
            if not is_refusal(error):
                raise
            if len(points) == 1:
                yield points[0], short(error)
                return
            middle = len(points) // 2
            yield from self._log_points(rows, points[:middle])
            yield from self._log_points(rows, points[middle:])
        else:
            self._in_time += 1
            if self._in_time % _MANY_IN_TIME == 0:
                self._most_metrics = min(MOST_METRICS, self._most_metrics * 2)

    # --- everything else

    def _try_item(self, item: Item) -> str:
        """Write the item; the reason if it is refused, else empty."""
        try:
            self._write_item(item)
        except (MlflowException, ValueError, OverflowError) as error:
            if not is_refusal(error):
                raise
            return short(error)
        except _ArtifactError as error:
            return str(error)
        return ""

    def _write_item(self, item: Item) -> None:
        if isinstance(item, ParamsItem):
            self._write_params(item)
        elif isinstance(item, TagsItem):
            self._write_tags(item)
        elif isinstance(item, TextItem):
            self._log_text(item, self._path("texts", item.name, item.step, ".txt"), item.text)
        elif isinstance(item, HistogramItem):
            content = {
                "name": item.name,
                "step": item.step,
                "timestamp": item.time_ns // 1_000_000,
                "edges": item.edges.tolist(),
                "counts": item.counts.tolist(),
            }
            self._log_text(item, self._path("histograms", item.name, item.step, ".json"), json.dumps(content))
        elif isinstance(item, AlertItem):
            tag = RunTag(own_key("alert", item.rule), cut(f"step {item.step}: {item.title}", LONGEST_TAG))
            self._client.log_batch(self._id, tags=[tag], synchronous=True)
            text = f"{item.severity}: {item.title}\n\n{item.text}\n"
            self._log_text(item, self._path("alerts", item.rule, item.step, ".txt"), text)
        elif isinstance(item, ArtifactItem):
            self._log_file(item)

    def _write_params(self, item: ParamsItem) -> None:
        merge_params(self._params, item.params)
        texts = param_texts(item.params)
        new = [Param(key, text) for key, text in texts.items() if key not in self._stored_params]
        changed = {key: text for key, text in texts.items() if self._stored_params.get(key, text) != text}
        for params in chunks(new, MOST_PARAMS):
            self._client.log_batch(self._id, params=params, synchronous=True)
            self._stored_params.update({param.key: param.value for param in params})
        tags = [RunTag(own_key("param_changed", key), cut(text, LONGEST_TAG)) for key, text in changed.items()]
        for part in chunks(tags, MOST_TAGS):
            self._client.log_batch(self._id, tags=part, synchronous=True)
        self._log_text(item, _PARAMS_FILE, json.dumps(self._params, indent=2, default=str))

    def _write_tags(self, item: TagsItem) -> None:
        tags = [RunTag(key, text) for key, text in tag_pairs(item.add).items()]
        for part in chunks(tags, MOST_TAGS):
            self._client.log_batch(self._id, tags=part, synchronous=True)
        kept = tag_pairs(item.now)
        for key in tag_pairs(dict.fromkeys(item.remove)):
            if key not in kept:
                try:
                    self._client.delete_tag(self._id, key)
                except MlflowException as error:
                    if error_code(error) != "RESOURCE_DOES_NOT_EXIST":
                        raise

    def _log_text(self, item: Item, path: str, text: str) -> None:
        clean = text.encode("utf-8", "replace").decode()
        self._log_artifact(item, lambda: self._client.log_text(self._id, clean, path))

    def _log_file(self, item: ArtifactItem) -> None:
        target = Path(self._file_path(item.name, item.step))
        folder = None if target.parent == Path() else str(target.parent)

        def send() -> None:
            if target.name == item.path.name:
                self._client.log_artifact(self._id, str(item.path), folder)
                return
            # The client takes a file's own name; here it is the name that was logged.
            with tempfile.TemporaryDirectory(dir=self._private) as place:
                copy = Path(place) / target.name
                try:
                    copy.hardlink_to(item.path)
                except OSError:
                    shutil.copyfile(item.path, copy)
                self._client.log_artifact(self._id, str(copy), folder)

        self._log_artifact(item, send)

    def _path(self, folder: str, name: str, step: float | None, suffix: str) -> str:
        """Where a text of the adapter's own goes: `folder/name.txt`, or `folder/name/<step>.txt`."""
        place = f"{folder}/{self._artifact_names(name)}"
        return place + suffix if step is None else f"{place}/{_digits(step)}{suffix}"

    def _file_path(self, name: str, step: float | None) -> str:
        """Where a logged file goes: its name, with the step in front of the last part."""
        stem, dot, ending = name.rpartition(".")
        keeps_ending = stem and ending.isalnum() and ending.isascii()
        path = self._artifact_names(stem) + dot + ending if keeps_ending else self._artifact_names(name)
        if step is None:
            return path
        folder, slash, last = path.rpartition("/")
        return f"{folder}{slash}{_digits(step)}-{last}"

    def _log_artifact(self, item: Item, send: Callable[[], object]) -> None:
        """Run `send`. An artifact store that fails while the server answers does not hold up everything for ever."""
        try:
            send()
        except Exception as error:
            self._client_answers(error)
            tries = self._artifact_failures[id(item)] = self._artifact_failures.get(id(item), 0) + 1
            if tries < _ARTIFACT_TRIES:
                raise later(error, self._uri) from error
            del self._artifact_failures[id(item)]
            raise _ArtifactError(f"artifact refused: {type(error).__name__}: {short(error)}") from error
        self._artifact_failures.pop(id(item), None)

    def _client_answers(self, error: Exception) -> None:
        """Raises `RetryLater` about `error` if the tracking server does not answer either."""
        try:
            self._client.get_run(self._id)
        except (MlflowException, OSError):
            raise later(error, self._uri) from error


class _ArtifactError(Exception):
    """The artifact cannot be stored."""


def _metric(row: Row, slot: int) -> Metric:
    return Metric(row.names[slot], float(row.values[slot]), row.time_ns // 1_000_000, int(row.step))


def _by_series(rows: Sequence[Row]) -> list[Point]:
    """All points, those of a series together: MLflow updates the latest value once for each series in a request."""
    first: dict[str, list[Point]] = {}
    for number, row in enumerate(rows):
        for slot, name in enumerate(row.names):
            first.setdefault(name, []).append((number, slot))
    # In the order of names, as all writers of one database should, lest two of them wait for each other.
    return [point for name in sorted(first) for point in first[name]]


def _digits(step: float) -> str:
    return f"{step:012d}" if isinstance(step, int) else str(step)
