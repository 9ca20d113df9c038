"""The configuration as frozen, typed, plain data. Nothing here reads, converts or checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Union

import msgspec

from tracker_bridge.health import HealthConfig

Grouping = Literal["parameter", "module", "block", "total"]
Part = Literal["attention", "mlp", "embeddings", "norms", "head", "last"]
DeliveryMode = Literal["process", "thread"]
WhenFull = Literal["drop_oldest", "drop_newest"]
Ranks = Literal["first", "all"]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]

MIB = 1024**2
GIB = 1024**3


class RouteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which series at which cadence and grouping go to a backend. The default lets everything through.

    `include`/`exclude`: globs (or `re:` regular expressions) on series names. `group_by`: None follows the gradients
    section. `rename`: series name -> new name, before `prefix` is put in front.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    every_n_steps: AtLeastOne = 1
    group_by: Union[Grouping, None] = None
    prefix: str = ""
    rename: dict[str, str] = {}


class BackendConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One configured tracker: its name here, the adapter's kind, and the options that were set (secrets included)."""

    name: str
    adapter: str
    options: dict[str, Any] = {}
    route: RouteConfig = RouteConfig()


class GradientsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `watch` measures, as in `GradientNormCollector`. Unset keys have that class' defaults.

    `include`/`exclude`: globs or `re:` regular expressions on clean parameter names. `parts`: named parts of a
    transformer, in addition to `include`. `rotate`: each due step measures 1/rotate of the layers in turn.
    `norm_type`: any p, also infinity. `group_by` is applied at delivery, where a backend's route may say otherwise.
    """

    every_n_steps: AtLeastOne = 1
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    group_by: Grouping = "parameter"
    norm_type: float = 2.0
    rotate: AtLeastOne = 1


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the runs lie. `dir` is absolute; `max_disk` is in bytes and bounds the journal of one run."""

    dir: Path
    max_disk: int = 2 * GIB
    when_full: WhenFull = "drop_oldest"


class DeliveryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the journal is drained. `close_timeout` is in seconds."""

    mode: DeliveryMode = "process"
    close_timeout: float = 60.0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `init` was told, resolved: every reference replaced by its value, every key checked.

    Holds secrets: `redact` makes the form that may be written. `gradients` is None where no source has that section.
    `cwd` is the working directory at load, to which relative paths in the backends' options belong. `origin` says
    where the configuration was found. `references` gives, for each key path whose value holds `${env:...}`, the text
    as it was written. `ranks`: in a job of several ranks the first one writes, or each one writes a run of its own.
    """

    project: Union[str, None] = None
    experiment: Union[str, None] = None
    name: Union[str, None] = None
    run_id: Union[str, None] = None
    resume: bool = False
    ranks: Ranks = "first"
    tags: dict[str, Union[str, None]] = {}
    params: dict[str, Any] = {}
    backends: tuple[BackendConfig, ...] = ()
    gradients: Union[GradientsConfig, None] = None
    queue: QueueConfig
    delivery: DeliveryConfig = DeliveryConfig()
    health: HealthConfig = HealthConfig()
    cwd: Path
    origin: str = "default"
    references: dict[tuple[str, ...], str] = {}

    def backend(self, name: str) -> BackendConfig:
        """The backend of that name. Raises `KeyError`."""
        for backend in self.backends:
            if backend.name == name:
                return backend
        raise KeyError(name)
