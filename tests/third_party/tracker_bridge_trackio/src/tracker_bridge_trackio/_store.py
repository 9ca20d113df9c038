"""One run in trackio's store. The only module that imports trackio.

Rows, texts, histograms and images are rows of trackio's log, each with an id made from its content; the config, which
trackio keeps as one value for a run, is written by `flush`. `trackio.init` is not used: it prints, asks the Hugging
Face hub who is logged in, and gives rows the time at which they are sent.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import trackio
from trackio.media import get_project_media_path
from trackio.sqlite_storage import SQLiteStorage
from trackio.utils import MEDIA_DIR, TRACKIO_DIR

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Batch,
    HistogramItem,
    Item,
    NameMap,
    NameRule,
    Opened,
    ParamsItem,
    RetryLater,
    Row,
    RunInfo,
    TagsItem,
    TextItem,
    flatten_params,
)

if TYPE_CHECKING:
    from tracker_bridge_trackio._adapter import TrackioOptions

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_OWN = "tracker_bridge/"
_LEVELS = {"info": "info", "warning": "warn"}
_projects = NameMap(
    NameRule(
        allowed="[A-Za-z0-9_-]",
        max_length=100,
        # Names that trackio refuses because it stores something else under them.
        reserved=("registry-.*", r".*_(system|configs|traces|\w*artifact\w*)"),
    )
)
_param_names = NameMap(NameRule(reserved=("_.*", f"{_OWN}.*")))
_paths = NameMap(NameRule(path=True, max_length=200, unit="bytes"))


class Store:
    """Writes one run."""

    def __init__(self, options: TrackioOptions, run: RunInfo) -> None:
        self._info = run
        self._project = run.ids.get("project") or options.project or _projects(run.project or "tracker_bridge")
        self._id = run.ids.get("run_id") or run.run_id
        self._name = run.ids.get("name") or options.name or run.name or run.run_id
        self._group = options.group or run.experiment
        self._config: dict[str, Any] = {}
        self._changed = False
        self._largest_step = 0

    def open(self) -> Opened:
        """Find or make the run."""
        folder = str(TRACKIO_DIR)
        known = self._info.ids.get("dir", folder)
        if known != folder:
            raise RetryLater(f"the run is in the trackio store {known}, not {folder}: set TRACKIO_DIR={known}")
        SQLiteStorage.validate_project_name(self._project)
        with _answers():
            self._config = SQLiteStorage.get_run_config(self._project, self._name, run_id=self._id) or {}
            last = SQLiteStorage.get_max_step_for_run(self._project, self._name, run_id=self._id)
        self._largest_step = last or 0
        facts = self._info.provenance
        self._config |= {
            "_Username": facts.get("user"),
            "_Created": _time(self._info.started_ns),
            "_Group": self._group,
        }
        self._config |= {f"{_OWN}{key}": _plain(value) for key, value in facts.items()}
        self._config[f"{_OWN}status"] = "running"
        self._changed = True
        self.flush()
        return Opened({"project": self._project, "run_id": self._id, "name": self._name, "dir": folder})

    def write(self, batch: Batch) -> None:
        """Store the batch, but for what belongs to the config."""
        rows: list[dict[str, Any]] = []
        steps: list[int] = []
        for item in batch.items:
            if isinstance(item, (ParamsItem, TagsItem)):
                self._configure(item)
                continue
            with _answers():
                made = self._row(item)
            if made is not None:
                # What has no step of its own stands where the run had got to, not at 0.
                step = getattr(item, "step", None)
                steps.append(self._largest_step if step is None else int(step))
                self._largest_step = max(self._largest_step, steps[-1])
                rows.append({"metrics": made, "time": _time(item.time_ns), "id": self._row_id(item, made)})
        if batch.renamed:
            self._config |= {f"{_OWN}names/{name}": original for name, original in batch.renamed.items()}
            self._changed = True
        self._log(rows, steps)
        self._alert([item for item in batch.items if isinstance(item, AlertItem)])

    def flush(self) -> None:
        """Store the config if it changed. trackio stores it with a row only: one that is empty and always the same."""
        if self._changed:
            self._log(
                [{"metrics": {}, "time": _time(self._info.started_ns), "id": f"{self._id}:run"}], [0], self._config
            )
            self._changed = False

    def close(self, status: str | None) -> None:
        """Store how the run ended."""
        if status is not None:
            self._config[f"{_OWN}status"] = status
            self._changed = True
        self.flush()

    def _log(self, rows: list[dict[str, Any]], steps: list[int], config: dict[str, Any] | None = None) -> None:
        with _answers():
            SQLiteStorage.bulk_log(
                self._project,
                self._name,
                [row["metrics"] for row in rows],
                steps=steps,
                timestamps=[row["time"] for row in rows],
                log_ids=[row["id"] for row in rows],
                run_id=self._id,
                config=config,
            )

    def _alert(self, alerts: list[AlertItem]) -> None:
        with _answers():
            SQLiteStorage.bulk_alert(
                self._project,
                self._name,
                titles=[alert.title for alert in alerts],
                texts=[alert.text for alert in alerts],
                levels=[_LEVELS.get(alert.severity, "error") for alert in alerts],
                steps=[int(alert.step) for alert in alerts],
                timestamps=[_time(alert.time_ns) for alert in alerts],
                alert_ids=[self._row_id(alert, {alert.rule: 1}) for alert in alerts],
                run_id=self._id,
            )

    def _row(self, item: Item) -> dict[str, Any] | None:
        """What trackio logs for the item; None if it is no row, or one that it has nothing for."""
        if isinstance(item, Row):
            return dict(zip(item.names, item.values.tolist(), strict=True))
        if isinstance(item, TextItem):
            return {item.name: {"_type": trackio.Markdown.TYPE, "_value": item.text}}
        if isinstance(item, HistogramItem):
            shape = {"bins": item.edges.tolist(), "values": item.counts.tolist()}
            return {item.name: {"_type": trackio.Histogram.TYPE, **shape}}
        if isinstance(item, ArtifactItem):
            return self._file(item)
        return None

    def _file(self, item: ArtifactItem) -> dict[str, Any] | None:
        """Copy the file to where trackio has files; an image is shown in its chart as well."""
        if item.media_type.startswith("image/"):
            digest = hashlib.blake2b(item.path.read_bytes(), digest_size=16).hexdigest()
            folder = get_project_media_path(self._project, run=_paths(self._id), step=int(item.step or 0))
            target = folder / f"{digest}{item.path.suffix}"
            shutil.copyfile(item.path, target)
            shown = str(target.relative_to(MEDIA_DIR))
            return {item.name: {"_type": trackio.Image.TYPE, "file_path": shown, "caption": None}}
        name = _paths(item.name) if item.step is None else f"{item.step}/{_paths(item.name)}"
        target = get_project_media_path(self._project, relative_path=_paths(self._id)) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(item.path, target)
        return None

    def _configure(self, item: ParamsItem | TagsItem) -> None:
        self._changed = True
        if isinstance(item, TagsItem):
            kept = {key: value for key, value in self._config.items() if not key.startswith(f"{_OWN}tags/")}
            self._config = kept | {f"{_OWN}tags/{tag}": value for tag, value in item.now.items()}
            return
        for key, value in flatten_params(item.params).items():
            name = _param_names(key)
            self._config[name] = _plain(value)
            if name != key:
                self._config[f"{_OWN}names/{name}"] = key

    def _row_id(self, item: Item, made: Mapping[str, Any]) -> str:
        """The same whenever the item comes again, and different for everything else in the project."""
        content = "\0".join((self._id, str(item.time_ns), str(item.sequence), str(getattr(item, "step", "")), *made))
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@contextmanager
def _answers() -> Iterator[None]:
    """What a store that is locked, full or away is for the courier: come again."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise RetryLater(f"trackio's store cannot be used: {type(error).__name__}: {error}") from error


def _time(time_ns: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_ns // 1000)).isoformat()


def _plain(value: Any) -> Any:
    """A value that trackio's JSON can hold: integers beyond 64 bits and anything unknown become text."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**63 else str(value)
    return value if value is None or isinstance(value, (bool, float, str)) else str(value)
