"""`neptune_scale.Run`, whose records go to a `tracker_bridge.Run`; arguments and errors as in neptune-scale 0.30.

Only misuse raises. Values that are no numbers are dropped with a warning as Neptune drops them (where
`NEPTUNE_LOG_FAILURE_ACTION` is `raise`, the whole call raises); what Neptune cannot hold but a run can is kept.
"""
# ruff: noqa: ARG002 - the signatures are Neptune's

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from tracker_bridge.compat import _core
from tracker_bridge.compat._coverage import say_once
from tracker_bridge.compat.neptune_scale.exceptions import NeptuneUnableToLogData
from tracker_bridge.compat.neptune_scale.types import File, Histogram

__all__ = ["Run", "SourceTrackingConfig"]

TRACKER = "neptune_scale"
_LARGEST_STEP = 1e12
_LONGEST_NAME = 730
# Bytes; neptune-scale refuses more at construction.
_WAIT = 60.0
# Seconds. Neptune waits for ever where no timeout is given; a tracker that is gone must not hang a script.


@dataclass(frozen=True)
class SourceTrackingConfig:
    """What Neptune is to log of the source code; here the run always has commit, branch, remote and command line."""

    namespace: str = "source_code"
    repository: str | None = None
    upload_run_command: bool = True
    upload_entry_point: bool = False
    upload_diff_head: bool = False
    upload_diff_upstream: bool = False


class Run:
    """A run of the script's; where it goes is the configuration's business. See `neptune_scale.Run` for the arguments.

    `project`, `experiment_name` (the run's name), `run_id` and `mode="disabled"` have their meaning. A run id that
    exists already is continued. `log_directory`, `api_token` and callbacks have none. Raises `ValueError`/`TypeError`
    as Neptune does, and `ConfigError`.
    """

    def __init__(
        self,
        *,
        run_id: str | None = None,
        project: str | None = None,
        api_token: str | None = None,
        mode: str | None = None,
        experiment_name: str | None = None,
        creation_time: datetime | None = None,
        fork_run_id: str | None = None,
        fork_step: int | float | None = None,
        log_directory: str | Path | None = None,
        max_queue_size: int | None = None,
        async_lag_threshold: float | None = None,
        on_async_lag_callback: Callable[[], None] | None = None,
        on_queue_full_callback: Callable[..., None] | None = None,
        on_network_error_callback: Callable[..., None] | None = None,
        on_error_callback: Callable[..., None] | None = None,
        on_warning_callback: Callable[..., None] | None = None,
        enable_console_log_capture: bool = True,
        runtime_namespace: str | None = None,
        source_tracking_config: SourceTrackingConfig | None = SourceTrackingConfig(),
        inherit_configs: bool = True,
        **kwargs: Any,
    ) -> None:
        _check_text("run_id", run_id)
        _check_text("project", project)
        _check_text("api_token", api_token)
        _check_text("experiment_name", experiment_name)
        _check_text("fork_run_id", fork_run_id)
        if run_id is not None and (not run_id or "/" in run_id or len(run_id.encode()) > _LONGEST_NAME):
            raise ValueError(f"run_id must be 1 to {_LONGEST_NAME} bytes without '/'")
        if experiment_name is not None and not 0 < len(experiment_name.encode()) <= _LONGEST_NAME:
            raise ValueError(f"experiment_name must be 1 to {_LONGEST_NAME} bytes")
        if (fork_run_id is None) != (fork_step is None):
            raise ValueError("`fork_run_id` and `fork_step` must be used together.")
        if (on_async_lag_callback is None) != (async_lag_threshold is None):
            raise ValueError("`on_async_lag_callback` must be used with `async_lag_threshold`.")
        project = project or os.environ.get("NEPTUNE_PROJECT")
        self._project = project
        self._experiment_name = experiment_name
        self._fork_step = fork_step
        self._session: _core.Session | None = None
        self._closed = False
        mode = mode or os.environ.get("NEPTUNE_MODE") or "async"
        if mode not in ("async", "offline"):
            if mode != "disabled":
                say_once(f"{TRACKER}: mode={mode!r} is none of async, offline, disabled; Neptune logs nothing then")
            self._run_id = run_id or "disabled"
            return
        session = _core.begin(TRACKER, project=project, name=experiment_name, run_id=run_id)
        self._session = session
        self._run_id = run_id or session.id
        coverage = session.coverage
        about: dict[str, Any] = {}
        if fork_run_id is not None:
            about["sys/forking"] = {"parent": fork_run_id, "step": fork_step}
            coverage.degrade("fork", "the parent's id and step are params sys/forking; its series are not continued")
        if creation_time is not None:
            about["sys/creation_time"] = creation_time
            coverage.degrade("creation_time", "is the param sys/creation_time")
        if about:
            session.run.log_params(about)
        if log_directory is not None:
            coverage.leave_out("log_directory", "runs lie in queue.dir of the configuration", quiet=True)
        callbacks = (
            on_async_lag_callback,
            on_queue_full_callback,
            on_network_error_callback,
            on_error_callback,
            on_warning_callback,
        )
        if any(callback is not None for callback in callbacks):
            coverage.leave_out("callbacks", "are never called: delivery reports its faults on stderr and in `status`")
        if enable_console_log_capture:
            coverage.leave_out("console capture", "stdout and stderr are left alone", quiet=True)
        asked = source_tracking_config
        if asked is not None and (asked.upload_entry_point or asked.upload_diff_head or asked.upload_diff_upstream):
            coverage.leave_out("source upload", "commit, branch and command line are kept, diffs and files are not")
        for name in kwargs:
            if name not in ("resume", "system_namespace"):
                coverage.leave_out(f"Run({name}=...)", "neptune_scale has no such argument and ignores it too")
        del max_queue_size, runtime_namespace, inherit_configs

    def __repr__(self) -> str:
        return f"<Run {self._run_id!r} of tracker_bridge.compat.neptune_scale>"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end(_core.status_of(error))

    # --- series

    def log_metrics(
        self,
        data: dict[str, float | int],
        step: float | int | None = None,
        *,
        timestamp: datetime | None = None,
        preview: bool = False,
        preview_completion: float | None = None,
    ) -> None:
        """Log scalars of one step. `preview=True`: under `<name>/preview`, beside the final values."""
        session = self._session
        if type(data) is not dict:
            _check_type("metrics", data, dict)
        if step is not None and (step.__class__ is not int or not 0 <= step < _LARGEST_STEP):
            _check_step(step)
        if timestamp is not None:
            _check_type("timestamp", timestamp, datetime)
        if preview or preview_completion is not None:
            data = _previewed(session, data, preview, preview_completion)
        if session is None or self._closed:
            return
        try:
            session.run.log_metrics(data, step, timestamp=timestamp)
        except (TypeError, ValueError):
            self._log_what_is_left(session, data, step, timestamp)
        calls = session.coverage.calls
        calls["log_metrics"] = calls.get("log_metrics", 0) + 1

    def log_string_series(self, data: dict[str, str], step: float | int, *, timestamp: datetime | None = None) -> None:
        """Log texts of one step."""
        _check_type("string_series", data, dict)
        session = self._live(step, timestamp)
        if session is None:
            return
        for name, text in data.items():
            if not isinstance(name, str) or not isinstance(text, str):
                self._drop("log_string_series", f"{name!r}: a text series holds texts, not {type(text).__name__}")
                continue
            session.run.log_text(name, text, step)
        if timestamp is not None:
            session.coverage.degrade("log_string_series(timestamp=)", "the time is when the call was made")
        session.coverage.translate("log_string_series")

    def log_histograms(
        self, histograms: dict[str, Histogram], step: float | int, *, timestamp: datetime | None = None
    ) -> None:
        """Log histograms of one step; densities become the share of each bin."""
        _check_type("histograms", histograms, dict)
        session = self._live(step, timestamp)
        if session is None:
            return
        for name, one in histograms.items():
            try:
                edges = one.bin_edges_as_list()
                if (one.counts is None) == (one.densities is None):
                    raise ValueError("a histogram has either counts or densities")
                if one.counts is not None:
                    counts = one.counts_as_list()
                else:
                    pairs = zip(edges[:-1], edges[1:], one.densities_as_list(), strict=True)
                    counts = [density * (high - low) for low, high, density in pairs]
                    session.coverage.degrade("Histogram(densities=)", "each bin holds its share, density times width")
                session.run.log_histogram(name, counts, edges, step)
            except (AttributeError, TypeError, ValueError) as error:
                self._drop("log_histograms", f"{name!r}: {error}")
        if timestamp is not None:
            session.coverage.degrade("log_histograms(timestamp=)", "the time is when the call was made")
        session.coverage.translate("log_histograms")

    def log_files(self, files: dict[str, Any], step: float | int, *, timestamp: datetime | None = None) -> None:
        """Keep files of one step: paths, bytes or `File`s."""
        _check_type("file_series", files, dict)
        session = self._live(step, timestamp)
        if session is not None:
            self._keep_files("log_files", session, files, step)

    # --- single values

    def log_configs(self, data: Any, flatten: bool = False, cast_unsupported: bool = False) -> None:
        """Log params: a mapping or a dataclass. Nested values are kept nested, or flattened with `/`."""
        if data is None:
            return
        if dataclasses.is_dataclass(data) and not isinstance(data, type):
            data = dataclasses.asdict(data)
        elif not isinstance(data, Mapping):
            raise TypeError(f"configs must be a mapping or a dataclass instance, not {type(data)}")
        if flatten:
            data = _flattened(data)
        if cast_unsupported:
            data = {name: _cast(value) for name, value in data.items()}
        session = self._live()
        if session is not None:
            session.run.log_params(data)
            session.coverage.translate("log_configs")

    def assign_files(self, files: dict[str, Any]) -> None:
        """Keep files under names: paths, bytes or `File`s."""
        _check_type("files", files, dict)
        session = self._live()
        if session is not None:
            self._keep_files("assign_files", session, files, None)

    def add_tags(self, tags: Iterable[str], group_tags: bool = False) -> None:
        """Add tags; group tags become plain ones."""
        session = self._live()
        if session is not None:
            session.run.add_tags(self._tags(session, tags, group_tags))
            session.coverage.translate("add_tags")

    def remove_tags(self, tags: Iterable[str], group_tags: bool = False) -> None:
        """Remove tags."""
        session = self._live()
        if session is not None:
            session.run.remove_tags(self._tags(session, tags, group_tags))
            session.coverage.translate("remove_tags")

    def log(
        self,
        step: float | int | None = None,
        timestamp: datetime | None = None,
        configs: Mapping[str, Any] | None = None,
        metrics: dict[str, float | int] | None = None,
        tags_add: Mapping[str, Any] | None = None,
        tags_remove: Mapping[str, Any] | None = None,
    ) -> None:
        """The one call of earlier versions."""
        if configs is not None:
            self.log_configs(configs)
        if metrics is not None:
            self.log_metrics(metrics, step, timestamp=timestamp)
        for given, change in ((tags_add, self.add_tags), (tags_remove, self.remove_tags)):
            for name, tags in (given or {}).items():
                change(tags, group_tags=name == "sys/group_tags")

    # --- waiting and ending

    def wait_for_submission(self, timeout: float | None = None, verbose: bool = True) -> bool:
        """Wait until everything has reached every backend; False if the time (None: a minute) is over."""
        return self._wait(timeout)

    def wait_for_processing(self, timeout: float | None = None, verbose: bool = True) -> bool:
        """The same as `wait_for_submission`: what a backend took, it has."""
        return self._wait(timeout)

    def get_run_url(self) -> str:
        """Where to look at the run: in Neptune if that is a backend, else in another, else the run directory."""
        return self._session.url("neptune") if self._session is not None else ""

    def get_experiment_url(self) -> str:
        """As `get_run_url`. Raises `ValueError` if the run has no experiment name, as Neptune does."""
        if self._experiment_name is None:
            raise ValueError("`experiment_name` was not provided during Run initialization")
        return self.get_run_url()

    def close(self, timeout: float | None = None) -> None:
        """End the run and wait for delivery, at most `timeout` (None: the configured) seconds.

        Called while an exception is handled, the run has failed.
        """
        self._end(_core.status_now(), timeout)

    def terminate(self) -> None:
        """End the run at once; what is not delivered stays on disk."""
        status = _core.status_now()
        self._end("killed" if status == "finished" else status, 0.0)

    # --- inside

    def _live(self, step: Any = None, timestamp: Any = None) -> _core.Session | None:
        if step is not None:
            _check_step(step)
        if timestamp is not None:
            _check_type("timestamp", timestamp, datetime)
        return None if self._closed else self._session

    def _end(self, status: str, timeout: float | None = None) -> None:
        if self._session is not None and not self._closed:
            self._closed = True
            self._session.end(status, timeout)

    def _wait(self, timeout: float | None) -> bool:
        session = self._live()
        if session is None:
            return True
        session.coverage.translate("wait")
        return session.run.flush(_WAIT if timeout is None else timeout)

    def _log_what_is_left(self, session: _core.Session, data: dict[str, Any], step: Any, timestamp: Any) -> None:
        """Log those values of a refused call that are numbers, as one record; report the others."""
        from tracker_bridge.run._values import OnDevice, as_scalar

        good: dict[str, Any] = {}
        for name, value in data.items():
            try:
                if not isinstance(name, str):
                    raise TypeError(f"a name must be text, not {type(name).__name__} ({name!r})")
                as_scalar(name, value)
            except OnDevice:
                good[name] = value
            except (TypeError, ValueError) as error:
                self._drop("log_metrics", str(error))
            else:
                good[name] = value
        if good:
            session.run.log_metrics(good, step, timestamp=timestamp)

    def _keep_files(self, call: str, session: _core.Session, files: dict[str, Any], step: Any) -> None:
        for name, file in files.items():
            source = file.source if isinstance(file, File) else file
            if isinstance(file, File) and (file.destination or file.mime_type):
                session.coverage.degrade("File(destination=, mime_type=)", "files go where each tracker puts them")
            try:
                if isinstance(source, (bytes, bytearray)):
                    session.keep_bytes(bytes(source), name, Path(name).suffix or _suffix(bytes(source)), step)
                elif isinstance(source, (str, os.PathLike)):
                    session.keep_file(source, name, step)
                else:
                    raise TypeError(f"a file is a path, bytes or a File, not {type(source).__name__}")
            except (TypeError, ValueError) as error:
                self._drop(call, f"{name!r}: {error}")
        session.coverage.translate(call)

    def _tags(self, session: _core.Session, tags: Any, group_tags: bool) -> list[str]:
        if group_tags:
            session.coverage.degrade("group tags", "are plain tags")
        if isinstance(tags, str):
            return [tags]
        kept = [tag for tag in tags if isinstance(tag, str)]
        if len(kept) != len(list(tags)):
            self._drop("tags", "a tag is text")
        return kept

    def _drop(self, call: str, why: str) -> None:
        if os.environ.get("NEPTUNE_LOG_FAILURE_ACTION", "drop").lower() == "raise":
            raise NeptuneUnableToLogData(why)
        assert self._session is not None
        self._session.coverage.leave_out(f"{call}: a value", why)


def _previewed(
    session: _core.Session | None, data: dict[str, Any], preview: bool, completion: float | None
) -> dict[str, Any]:
    _check_type("preview", preview, bool)
    if completion is not None and not isinstance(completion, float):
        raise TypeError(f"preview_completion must be a float or None, not {type(completion).__name__}")
    if not preview:
        if completion not in (None, 1.0):
            raise ValueError("preview_completion can only be specified for metric previews")
        return data
    if completion is not None and not 0.0 <= completion <= 1.0:
        raise ValueError(f"preview_completion must be between 0 and 1, not {completion}")
    if session is not None:
        session.coverage.degrade("log_metrics(preview=True)", "previews are points of the series <name>/preview")
    return {f"{name}/preview": value for name, value in data.items()}


def _flattened(data: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Mapping):
            flat |= _flattened(value, name)
        else:
            flat[name] = value
    return flat


def _cast(value: Any) -> Any:
    if isinstance(value, (float, bool, int, str, datetime)):
        return value
    if isinstance(value, (list, set, tuple)) and all(isinstance(item, str) for item in value):
        return value
    return "" if value is None else str(value)


def _suffix(content: bytes) -> str:
    """The ending for content without a name: what Neptune guesses as text, and images by their first bytes."""
    for head, suffix in ((b"\x89PNG", ".png"), (b"\xff\xd8\xff", ".jpg"), (b"%PDF", ".pdf"), (b"GIF8", ".gif")):
        if content.startswith(head):
            return suffix
    try:
        content.decode()
    except UnicodeDecodeError:
        return ".bin"
    return ".txt"


def _check_text(name: str, value: Any) -> None:
    if value is not None:
        _check_type(name, value, str)


def _check_type(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__} (was {type(value)})")


def _check_step(step: Any) -> None:
    number: float | None
    try:
        number = float(step)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(step, str):
        raise TypeError(f"step must be a float or an int (was {type(step)})")
    if not 0 <= number < _LARGEST_STEP:
        raise ValueError(f"step must be at least 0 and below {_LARGEST_STEP:.0f}, not {step}")
