"""`wandb` without wandb: the everyday API, leading to any configured backends. Follows wandb 0.31.

Carried: `init`, `log` (steps as W&B counts them), `config`, `define_metric` (its axis becomes the step), `Histogram`,
texts, tags, files, `finish`. In another form: `summary` (`summary/<name>`), `watch` (gradient norms), media and tables
(files), artifacts (their files), alerts (texts). Sweeps, `Api`, `use_artifact` and their like raise
`NotImplementedError`.
"""

from __future__ import annotations

import enum
from typing import Any

from tracker_bridge.compat._core import missing
from tracker_bridge.compat.wandb import data_types, errors, plot, sdk, util
from tracker_bridge.compat.wandb._artifact import Artifact
from tracker_bridge.compat.wandb._config import Config
from tracker_bridge.compat.wandb._run import BeforeInit, Run, Settings, finish, init, say_not_needed
from tracker_bridge.compat.wandb.data_types import (
    Audio,
    Classes,
    Histogram,
    Html,
    Image,
    Molecule,
    Object3D,
    Plotly,
    Table,
    Video,
)
from tracker_bridge.compat.wandb.errors import CommError, Error, UsageError
from tracker_bridge.compat.wandb.errors.term import termerror, termlog, termwarn
from tracker_bridge.compat.wandb.plot import plot_table, visualize

__version__ = "0.31.0"

__all__ = [
    "AlertLevel",
    "Artifact",
    "Audio",
    "Classes",
    "CommError",
    "Config",
    "Error",
    "Histogram",
    "Html",
    "Image",
    "Molecule",
    "Object3D",
    "Plotly",
    "Run",
    "Settings",
    "Table",
    "UsageError",
    "Video",
    "alert",
    "config",
    "data_types",
    "define_metric",
    "errors",
    "finish",
    "init",
    "join",
    "log",
    "log_artifact",
    "log_model",
    "login",
    "plot",
    "plot_table",
    "require",
    "run",
    "save",
    "sdk",
    "setup",
    "summary",
    "teardown",
    "termerror",
    "termlog",
    "termwarn",
    "unwatch",
    "util",
    "visualize",
    "watch",
]

run: Run | None = None
config: Any = BeforeInit("wandb.config")
summary: Any = BeforeInit("wandb.summary")

join = finish
wandb_sdk = sdk

_RAISING = (
    "Api",
    "agent",
    "controller",
    "restore",
    "sweep",
    "use_artifact",
    "use_model",
    "attach",
)


class AlertLevel(enum.Enum):
    """How grave an alert is."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


def _of_run(name: str) -> Any:
    """The module-level function for a method of the current run."""

    def call(*args: Any, **kwargs: Any) -> Any:
        current = run
        if current is None:
            raise Error(f"You must call wandb.init() before wandb.{name}()")
        return getattr(current, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`wandb.run.{name}`. Raises `wandb.Error` before `wandb.init()`."
    return call


alert = _of_run("alert")
define_metric = _of_run("define_metric")
link_model = _of_run("link_model")
log = _of_run("log")
log_artifact = _of_run("log_artifact")
log_code = _of_run("log_code")
log_model = _of_run("log_model")
mark_preempting = _of_run("mark_preempting")
pin_config_keys = _of_run("pin_config_keys")
save = _of_run("save")
unwatch = _of_run("unwatch")
watch = _of_run("watch")


def login(*_args: Any, **_kwargs: Any) -> bool:
    """True: there is nothing to log in to, and no key is looked at or kept."""
    return True


def setup(*_args: Any, **_kwargs: Any) -> None:
    """Nothing to set up."""


def teardown(exit_code: int | None = None) -> None:
    """Finish the current run."""
    finish(exit_code)


def require(*_args: Any, **_kwargs: Any) -> None:
    """Nothing to require."""
    say_not_needed("require")


def __getattr__(name: str) -> Any:
    return missing("wandb", "wandb", name, _RAISING)
