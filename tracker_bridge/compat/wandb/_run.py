"""`wandb.init` and the `Run` it gives, whose records go to a `tracker_bridge.Run`. Follows wandb 0.31.

Rows are numbered as W&B numbers them (its own counter; `step=`, `commit=`), but each value is logged at once, and a row
with an earlier step is kept where W&B drops it.
"""
# ruff: noqa: ARG001, ARG002, A002 - the signatures are W&B's

from __future__ import annotations

import glob as globs
import operator
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn

from tracker_bridge.compat import _core
from tracker_bridge.compat._coverage import say_once
from tracker_bridge.compat.wandb._artifact import Artifact
from tracker_bridge.compat.wandb._config import Config, parsed
from tracker_bridge.compat.wandb._row import Axes, log_row
from tracker_bridge.compat.wandb._summary import Summary
from tracker_bridge.compat.wandb.errors import Error, UsageError
from tracker_bridge.compat.wandb.util import generate_id

__all__ = ["BeforeInit", "Run", "Settings", "finish", "init"]

TRACKER = "wandb"
_SHIM = "tracker_bridge.compat.wandb"
_NUMBERS = frozenset({int, float, bool})
_DEFAULTS_FILE = "config-defaults.yaml"


class Settings(SimpleNamespace):
    """`wandb.Settings`: any settings; `mode`, `project`, `run_id`, `run_name`, `run_group` and tags have a meaning."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class BeforeInit:
    """`wandb.config` and `wandb.summary` before `wandb.init`. Every use raises `wandb.Error`."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _refuse(self, what: str) -> NoReturn:
        raise Error(f"You must call wandb.init() before {self._name}{what}")

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        self._refuse(f".{key}")

    def __setattr__(self, key: str, value: Any) -> None:
        self._refuse(f".{key}")

    def __getitem__(self, key: str) -> Any:
        self._refuse(f"[{key!r}]")

    def __setitem__(self, key: str, value: Any) -> None:
        self._refuse(f"[{key!r}]")


class Run:
    """A run. Made by `wandb.init`; `session` is None for a disabled one, which takes every call and does nothing."""

    def __init__(self, session: _core.Session | None, about: Mapping[str, Any]) -> None:
        self._session = session
        self._about = dict(about)
        self._id = about.get("id") or (session.id if session is not None else generate_id())
        self._step = 0
        self._open_row: set[str] = set()
        self._axes = Axes()
        self._finished = False
        self._watches: list[Any] = []
        self._files: str | None = None
        self._tags = tuple(about.get("tags") or ())
        self.start_time = time.time()
        self.config = Config(self._log_config)
        self.summary = Summary(self._log_summary)
        self.settings = about.get("settings") or Settings()

    def __repr__(self) -> str:
        return f"<Run {self._id!r} of tracker_bridge.compat.wandb>"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._finish(_core.status_of(error))

    # --- about the run

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self._id)

    @property
    def name(self) -> str:
        """The run's name; set later, it is the param `wandb_name`."""
        return str(self._about.get("name") or self._id)

    @name.setter
    def name(self, name: str) -> None:
        self._about["name"] = name
        if self._session is not None:
            self._session.run.log_params({"wandb_name": name})
            self._session.coverage.degrade("run.name = ...", "trackers name a run when it begins; it is a param")

    @property
    def notes(self) -> str | None:
        """The notes; the text `notes` in the trackers."""
        return self._about.get("notes")

    @notes.setter
    def notes(self, notes: str) -> None:
        self._about["notes"] = notes
        if self._session is not None:
            self._session.run.log_text("notes", notes)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags; setting them adds and removes."""
        return self._tags

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        before, self._tags = self._tags, tuple(tags)
        if self._session is not None:
            self._session.run.add_tags([tag for tag in self._tags if tag not in before])
            self._session.run.remove_tags([tag for tag in before if tag not in self._tags])

    @property
    def project(self) -> str:
        """The project's name."""
        return str(self._about.get("project") or "uncategorized")

    def project_name(self) -> str:
        """The project's name."""
        return self.project

    @property
    def entity(self) -> str:
        """The entity that the script named."""
        return str(self._about.get("entity") or "")

    @property
    def group(self) -> str:
        """The group's name."""
        return str(self._about.get("group") or "")

    @property
    def job_type(self) -> str:
        """The job type; the tag `job_type` in the trackers."""
        return str(self._about.get("job_type") or "")

    @property
    def path(self) -> str:
        """entity/project/id."""
        return "/".join(part for part in (self.entity, self.project, self.id) if part)

    @property
    def url(self) -> str | None:
        """Where to look at the run: at W&B if that is a backend, else elsewhere, else the run directory."""
        return None if self._session is None else self._session.url("wandb")

    project_url = sweep_url = url

    def get_url(self) -> str | None:
        """See `url`."""
        return self.url

    @property
    def sweep_id(self) -> str | None:
        """There are no sweeps."""
        return None

    @property
    def dir(self) -> str:
        """A folder; what lies in it when the run ends is kept with the run."""
        if self._files is None:
            if self._session is None:
                self._files = tempfile.mkdtemp(prefix="wandb-")
            else:
                folder = self._session.place() / "wandb_files"
                folder.mkdir(parents=True, exist_ok=True)
                self._files = str(folder)
                self._session.before_end.append(self._keep_dir)
        return self._files

    @property
    def step(self) -> int:
        """The number of the coming row."""
        return self._step

    starting_step = 0
    offline = False

    @property
    def resumed(self) -> bool:
        """Whether the script asked to continue a run."""
        return bool(self._about.get("resume"))

    @property
    def mode(self) -> str:
        """`online`, or `disabled`."""
        return "disabled" if self.disabled else "online"

    @property
    def disabled(self) -> bool:
        """Whether nothing is logged."""
        return self._session is None

    @property
    def config_static(self) -> SimpleNamespace:
        """A copy of the config."""
        return SimpleNamespace(**self.config.as_dict())

    # --- logging

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Log a row: scalars, texts, media, histograms, nested mappings. Raises as W&B does for misuse."""
        self._refuse_if_finished("log")
        if not isinstance(data, Mapping):
            raise ValueError("wandb.log must be passed a dictionary")
        plain = True
        for name, value in data.items():
            if type(name) is not str and not isinstance(name, str):
                raise ValueError("Key values passed to `wandb.log` must be strings.")
            if type(value) not in _NUMBERS:
                plain = False
        at = self._number(step, commit, data)
        session = self._session
        if session is None:
            self.summary.seen(data)
            return
        if plain and not self._axes:
            session.run.log_metrics(data, at)
        else:
            log_row(session, data, at, self._axes)
        self.summary.seen(data)
        calls = session.coverage.calls
        calls["log"] = calls.get("log", 0) + 1

    def _number(self, step: Any, commit: bool | None, data: Mapping[str, Any]) -> int:
        """The step of this row, by W&B's rules; moves the counter."""
        if step is None:
            at = self._step
            close = commit is None or commit
        else:
            try:
                at = operator.index(step)
            except TypeError:
                raise TypeError(f"step must be an int, not {type(step).__name__}") from None
            if at > self._step:
                self._step = at
                self._open_row.clear()
            close = bool(commit) and at >= self._step
        if close:
            if self._open_row:
                self._note_twice(data)
                self._open_row.clear()
            self._step += 1
        elif at == self._step:
            self._note_twice(data)
            self._open_row.update(data)
        return at

    def _note_twice(self, data: Mapping[str, Any]) -> None:
        if self._session is not None and not self._open_row.isdisjoint(data):
            self._session.coverage.degrade(
                "log: a name twice in a row", "each value is logged at that step; W&B would keep the last"
            )

    def define_metric(
        self,
        name: str,
        step_metric: Any = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
        **kwargs: Any,
    ) -> SimpleNamespace:
        """Give metrics an x axis of their own: the values of `step_metric` become their steps."""
        axis = getattr(step_metric, "name", step_metric)
        self._axes.define(name, axis)
        if self._session is not None:
            self._session.coverage.translate("define_metric")
            if summary or goal or hidden:
                self._session.coverage.leave_out(
                    "define_metric(summary=, goal=, hidden=)", "trackers summarise as they do"
                )
        return SimpleNamespace(name=name, step_metric=axis, summary=summary, hidden=hidden, goal=goal)

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Log the gradient norm of every layer at every `log_freq`-th optimizer step."""
        self._refuse_if_finished("watch")
        session = self._session
        if session is None:
            return
        coverage = session.coverage
        if log_graph:
            coverage.leave_out("watch(log_graph=True)", "no tracker of the configuration takes a graph")
        if log in ("parameters", "all"):
            coverage.leave_out("watch(log='parameters')", "only gradients are watched")
        if log in (None, "parameters"):
            return
        launched = sys.modules.get("tracker_bridge.launch._gradients")
        if launched is not None and launched.watching():
            coverage.degrade("watch", "gradients are watched as the configuration says; norms, not histograms")
            return
        from tracker_bridge.compat.wandb._watch import watch_models

        self._watches.append(watch_models(session.run, models, log_freq))
        coverage.degrade("watch", "the norm of each layer's gradient at each due optimizer step, not its histogram")

    def unwatch(self, models: Any = None) -> None:
        """Stop watching (all models)."""
        while self._watches:
            self._watches.pop().remove()

    def save(self, glob_str: Any = None, base_path: Any = None, policy: str = "live", *_args: Any) -> list[str] | bool:
        """Keep the files that match, as they are now."""
        if glob_str is None:
            return True
        found = [path for path in globs.glob(os.fspath(glob_str), recursive=True) if Path(path).is_file()]
        if self._session is not None:
            base = base_path if base_path is not None else ("" if not os.path.isabs(glob_str) else None)
            for path in found:
                name = Path(path).name if base is None else os.path.relpath(path, base or ".")
                self._session.keep_file(path, name)
            self._session.coverage.translate("save")
            if policy != "now":
                self._session.coverage.degrade(f"save(policy={policy!r})", "files are kept as they are at the call")
        return found

    def log_artifact(
        self,
        artifact_or_path: Any,
        name: str | None = None,
        type: str | None = None,
        aliases: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
    ) -> Artifact:
        """Keep the files of an artifact, or a file or folder, under `<artifact name>/`."""
        artifact = artifact_or_path
        if not isinstance(artifact, Artifact):
            path = Path(artifact)
            artifact = Artifact(name or path.name, type or "unspecified")
            artifact.add_dir(str(path)) if path.is_dir() else artifact.add_file(str(path))
        if self._session is not None:
            for inner, path in artifact.files_by_name.items():
                self._session.keep_file(path, f"{artifact.name}/{inner}")
            if artifact.metadata:
                self._session.run.log_params({f"artifact/{artifact.name}": artifact.metadata})
            coverage = self._session.coverage
            coverage.degrade("log_artifact", "files are kept; versions, aliases and lineage are W&B's")
            if artifact.references:
                coverage.leave_out("Artifact.add_reference", "only files are kept")
        return artifact

    upsert_artifact = finish_artifact = log_artifact

    def log_model(self, path: str, name: str | None = None, aliases: Any = None) -> None:
        """Keep a model's files."""
        self.log_artifact(path, name=name, type="model")

    def log_code(self, *_args: Any, **_kwargs: Any) -> None:
        """Not carried."""
        self._leave_out("log_code", "code is not uploaded; the run has the commit")

    def link_artifact(self, *_args: Any, **_kwargs: Any) -> None:
        """Not carried."""
        self._leave_out("link_artifact", "there is no registry")

    link_model = link_artifact

    def mark_preempting(self) -> None:
        """Not carried."""
        self._leave_out("mark_preempting", "there is no scheduler to tell")

    def pin_config_keys(self, keys: Sequence[str] = ()) -> None:
        """Not carried."""
        self._leave_out("pin_config_keys", "belongs to W&B's pages")

    def use_artifact(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises `NotImplementedError`."""
        _core.cannot(TRACKER, "use_artifact", "Read the file from where it was made, or use W&B for this script.")

    def use_model(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises `NotImplementedError`."""
        _core.cannot(TRACKER, "use_model", "Read the file from where it was made, or use W&B for this script.")

    def restore(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises `NotImplementedError`."""
        _core.cannot(TRACKER, "restore")

    def alert(self, title: str, text: str, level: Any = None, wait_duration: Any = None) -> None:
        """A text under `alerts/`."""
        if self._session is not None:
            self._session.run.log_text(f"alerts/{title}", f"{level or 'INFO'}: {title}\n\n{text}", self._step)
            self._session.coverage.degrade("alert", "is a text under alerts/; nobody is notified")

    def display(self, *_args: Any, **_kwargs: Any) -> bool:
        """Nothing is displayed."""
        return False

    def to_html(self, *_args: Any, **_kwargs: Any) -> str:
        """A link."""
        return f'<a href="{self.url}">{self.name}</a>'

    def status(self) -> SimpleNamespace:
        """Nothing is waited for."""
        return SimpleNamespace(sync_items_total=0, sync_items_pending=0, sync_time=None)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run; it has failed if the exit code is not 0, or an exception is being handled."""
        if exit_code is None:
            self._finish(_core.status_now())
        else:
            self._finish("finished" if exit_code == 0 else "failed")

    join = finish

    # --- inside

    def _finish(self, status: str) -> None:
        if self._finished:
            return
        self._finished = True
        self.unwatch()
        if self._session is not None:
            self._session.end(status)
        shim = vars(sys.modules[_SHIM])
        if shim["run"] is self:
            shim.update(run=None, config=BeforeInit("wandb.config"), summary=BeforeInit("wandb.summary"))

    def _refuse_if_finished(self, call: str) -> None:
        if self._finished and self._session is not None:
            raise UsageError(f"Run ({self.id}) is finished. The call to `{call}` will be ignored.")

    def _log_config(self, values: Mapping[str, Any]) -> None:
        if self._session is not None and not self._finished:
            self._session.run.log_params(dict(values))
            self._session.coverage.translate("config")

    def _log_summary(self, values: Mapping[str, Any]) -> None:
        if self._session is not None and not self._finished:
            row = {f"summary/{name}": value for name, value in values.items()}
            log_row(self._session, row, self._step, Axes())
            self._session.coverage.degrade("summary", "a value that is set is logged under summary/<name>")

    def _keep_dir(self) -> None:
        if self._session is not None and self._files is not None and self._session.keep_folder(self._files, ""):
            self._session.coverage.translate("files in run.dir")

    def _leave_out(self, call: str, why: str) -> None:
        if self._session is not None:
            self._session.coverage.leave_out(call, why)


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: Any = None,
    id: str | None = None,
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | str | None = None,
    config: Any = None,
    config_exclude_keys: list[str] | None = None,
    config_include_keys: list[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: Any = None,
    resume: Any = None,
    resume_from: str | None = None,
    fork_from: str | None = None,
    save_code: bool | None = None,
    tensorboard: bool | None = None,
    sync_tensorboard: bool | None = None,
    monitor_gym: bool | None = None,
    settings: Any = None,
    anonymous: Any = None,
    **kwargs: Any,
) -> Run:
    """Begin a run and make it `wandb.run`. W&B's own `WANDB_*` variables hold where an argument is not given.

    With a run open, that one is returned (`reinit=True` or `"finish_previous"`: it is finished first). Raises
    `ConfigError` of tracker_bridge for a configuration that cannot be used.
    """
    shim = vars(sys.modules[_SHIM])
    open_run: Run | None = shim["run"]
    if open_run is not None and not open_run._finished:
        if reinit in (True, "finish_previous"):
            open_run.finish()
        elif reinit != "create_new":
            return open_run
    chosen = Settings(**settings) if isinstance(settings, dict) else settings
    environ = os.environ.get
    mode = mode or getattr(chosen, "mode", None) or environ("WANDB_MODE")
    about: dict[str, Any] = {
        "entity": entity or getattr(chosen, "entity", None) or environ("WANDB_ENTITY"),
        "project": project or getattr(chosen, "project", None) or environ("WANDB_PROJECT"),
        "id": id or getattr(chosen, "run_id", None) or environ("WANDB_RUN_ID"),
        "name": name or getattr(chosen, "run_name", None) or environ("WANDB_NAME"),
        "notes": notes or environ("WANDB_NOTES"),
        "tags": _tags(tags if tags is not None else environ("WANDB_TAGS")),
        "group": group or getattr(chosen, "run_group", None) or environ("WANDB_RUN_GROUP"),
        "job_type": job_type or environ("WANDB_JOB_TYPE"),
        "resume": resume if resume is not None else environ("WANDB_RESUME"),
        "settings": chosen,
    }
    session = None
    if mode != "disabled" and not _core.truthy("WANDB_DISABLED"):
        session = _begin(about)
        for given, text in (
            (about["entity"], "entity"),
            (resume_from, "resume_from"),
            (fork_from, "fork_from"),
            (save_code, "save_code"),
            (monitor_gym, "monitor_gym"),
        ):
            if given:
                session.coverage.leave_out(f"init({text}=)", "belongs to W&B; see the wandb backend's options")
        for unknown in kwargs:
            session.coverage.leave_out(f"init({unknown}=)", "wandb.init has no such argument")
        if sync_tensorboard or tensorboard:
            session.coverage.translate("sync_tensorboard")
    run = Run(session, about)
    run._about["sync_tensorboard"] = bool(sync_tensorboard or tensorboard)
    defaults = parsed(_DEFAULTS_FILE) if os.path.exists(_DEFAULTS_FILE) else {}
    values = {**defaults, **_filtered(parsed(config), config_include_keys, config_exclude_keys)}
    if values:
        run.config.update(values)
    if about["notes"] and session is not None:
        session.run.log_text("notes", str(about["notes"]))
    if reinit != "create_new" or open_run is None:
        shim.update(run=run, config=run.config, summary=run.summary)
    return run


def _begin(about: Mapping[str, Any]) -> _core.Session:
    tags: dict[str, str | None] = dict.fromkeys(about["tags"])
    if about["job_type"]:
        tags["job_type"] = str(about["job_type"])
    return _core.begin(
        TRACKER,
        project=about["project"],
        experiment=about["group"],
        name=about["name"],
        run_id=about["id"],
        tags=tags,
    )


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish `wandb.run`, if there is one."""
    run: Run | None = vars(sys.modules[_SHIM])["run"]
    if run is not None:
        run.finish(exit_code, quiet)


def _tags(tags: Any) -> list[str]:
    if tags is None:
        return []
    if isinstance(tags, str):
        return [tag.strip() for tag in tags.split(",") if tag.strip()]
    return [str(tag) for tag in tags]


def _filtered(values: dict[str, Any], include: list[str] | None, exclude: list[str] | None) -> dict[str, Any]:
    if include and exclude:
        raise UsageError("Expected at most only one of config_exclude_keys or config_include_keys")
    if include:
        return {key: value for key, value in values.items() if key in include}
    return {key: value for key, value in values.items() if key not in (exclude or ())}


def say_not_needed(call: str) -> None:
    """Say once that a call about W&B's own service does nothing here."""
    say_once(f"{TRACKER}: {call}: nothing to do; where runs go is the configuration's business")
