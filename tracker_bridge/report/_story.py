"""What a report, a diagnosis or a terminal view needs of one run, read from its directory. Reads only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracker_bridge.health import RULES, HealthConfig, Monitor, find_learning_rate, find_loss
from tracker_bridge.journal import Gap, scan
from tracker_bridge.reader import GradientNormTable, RunReader, read
from tracker_bridge.records import Alert, Metrics, NormVector, RunFinished, SeriesTable, Snapshot, Step
from tracker_bridge.rundir import RunPaths, load_manifest

SEVERITIES = ("error", "warning", "info")
"""Gravest first."""

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Series:
    """One scalar series: `steps` int64 or float64 [N], `values` float64 [N]."""

    name: str
    steps: Steps
    values: Floats


@dataclass(frozen=True, slots=True)
class Model:
    """The norms of one watched model. `name` is empty for the first; `numel` int64 [L], elements of each layer."""

    name: str
    norms: GradientNormTable
    numel: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lost:
    """A gap in the journal, and the step of the last norms or metrics before it; None at the very beginning."""

    gap: Gap
    after: Step | None


@dataclass(frozen=True, slots=True)
class Story:
    """One run: who it was, how it went, what was found. `alerts` in the order in which they arose."""

    run_id: str
    name: str | None
    project: str | None
    experiment: str | None
    status: str
    message: str
    dir: Path
    created_ns: int
    finished_ns: int | None
    params: Mapping[str, Any]
    tags: Mapping[str, str | None]
    models: tuple[Model, ...]
    loss: Series | None
    learning_rate: Series | None
    alerts: tuple[Alert, ...]
    lost: tuple[Lost, ...] = ()
    """Records that the journal once had."""

    @property
    def title(self) -> str:
        """The run's name, or its id."""
        return self.name or self.run_id

    @property
    def steps(self) -> int:
        """Recorded norm vectors, or values of the loss if there are none."""
        counted = max((len(model.norms) for model in self.models), default=0)
        return counted or (0 if self.loss is None else len(self.loss.steps))

    def worst(self) -> Alert | None:
        """The gravest alert by severity and rule, the first of its kind."""
        return min(self.alerts, key=_gravity, default=None)


def read_story(run_dir: str | os.PathLike[str], config: HealthConfig | None = None) -> Story:
    """Read a run, and judge it anew by the rules of `config` (None: those that it was configured with).

    Alerts that were kept while it ran, or came from another tracker, stand beside what the rules find now. Raises
    `rundir.NotARunError`, `JournalError`, `OSError`.
    """
    paths = RunPaths(Path(run_dir))
    manifest = load_manifest(paths)
    reader = read(run_dir)
    settings = configured_rules(manifest.config) if config is None else config
    monitor = Monitor(settings)
    alerts: list[Alert] = []
    kinds: dict[str, dict[str, int]] = {}
    loss_name, rate_name = None, None
    message = ""
    lost: list[Lost] = []
    last: Step | None = None
    for item in scan(paths.journal):
        if isinstance(item, Gap):
            lost.append(Lost(item, last))
            continue
        record = item.record
        if isinstance(record, (Metrics, NormVector)):
            last = record.step
        alerts += monitor.feed(record)
        if isinstance(record, Metrics):
            loss_name = loss_name or find_loss(record.values, settings)
            rate_name = rate_name or find_learning_rate(record.values, settings)
        elif isinstance(record, RunFinished):
            message = record.message
        elif isinstance(record, (SeriesTable, Snapshot)):
            for table in record.tables if isinstance(record, Snapshot) else (record,):
                if table.kind.partition("/")[0] == "gradients":
                    kinds.setdefault(table.kind, {}).update(zip(table.names, table.numel, strict=False))
    metrics = reader.metrics() if loss_name or rate_name else {}
    return Story(
        run_id=manifest.run_id,
        name=manifest.name,
        project=manifest.project,
        experiment=manifest.experiment,
        status=reader.status,
        message=message,
        dir=paths.root,
        created_ns=manifest.created_ns,
        finished_ns=manifest.finished_ns,
        params=reader.params,
        tags=reader.tags,
        models=tuple(_model(reader, kind, numel) for kind, numel in kinds.items()),
        loss=_series(metrics, loss_name),
        learning_rate=_series(metrics, rate_name),
        alerts=_each_once([*alerts, *reader.alerts()]),
        lost=tuple(lost),
    )


def _model(reader: RunReader, kind: str, numel: Mapping[str, int]) -> Model:
    norms = reader.norms(kind)
    counts = np.array([max(1, numel.get(name, 1)) for name in norms.names], dtype=np.int64)
    return Model(kind.partition("/")[2], norms, counts)


def _series(metrics: Mapping[str, tuple[Any, Floats]], name: str | None) -> Series | None:
    return None if name is None or name not in metrics else Series(name, *metrics[name])


def configured_rules(config: Mapping[str, Any]) -> HealthConfig:
    """The rules of the manifest's configuration; the defaults if it has none that can be used."""
    try:
        settings = msgspec.convert(config.get("health") or {}, HealthConfig)
        Monitor(settings)
    except (msgspec.ValidationError, ValueError):
        return HealthConfig()
    return settings


def _each_once(alerts: list[Alert]) -> tuple[Alert, ...]:
    """What was found while the run went on and is found again now counts once."""
    found: dict[tuple[str, Any], Alert] = {}
    for alert in alerts:
        found.setdefault((alert.rule, alert.step), alert)
    return tuple(sorted(found.values(), key=lambda alert: alert.time_ns))


def _gravity(alert: Alert) -> tuple[int, int]:
    severity = SEVERITIES.index(alert.severity) if alert.severity in SEVERITIES else len(SEVERITIES)
    return severity, RULES.index(alert.rule) if alert.rule in RULES else len(RULES)
