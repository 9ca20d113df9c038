"""Record streams of made-up norms, for what a training cannot be asked to do on command."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracker_bridge.health import HealthConfig, Monitor
from tracker_bridge.records import (
    Alert,
    AnyRecord,
    Metrics,
    NormVector,
    RunFinished,
    SeriesTable,
    pack_mask,
    pack_values,
)

LAYERS = (*(f"model.layers.{block}.{part}" for block in range(4) for part in ("weight", "bias")), "head.weight")


class Stream:
    """Feeds a monitor and keeps what it was fed and what it said. `norms` without values draws healthy noise."""

    def __init__(self, names: Sequence[str] = LAYERS, config: HealthConfig | None = None, seed: int = 0) -> None:
        self.names = tuple(names)
        self.monitor = Monitor(config)
        self.random = np.random.default_rng(seed)
        self.level = np.ones(len(self.names))
        self.step = -1
        self.records: list[AnyRecord] = []
        self.alerts: list[Alert] = []
        self.table = 0
        self.feed(SeriesTable(0, 0, "gradients", self.names, (1,) * len(self.names)))

    def feed(self, record: AnyRecord) -> list[Alert]:
        """Feed one record."""
        self.records.append(record)
        alerts = self.monitor.feed(record)
        self.alerts += alerts
        return alerts

    def draw(self) -> np.ndarray:
        """Healthy values [L]: log-normal around `level`."""
        return self.level * np.exp(self.random.normal(0, 0.2, len(self.names)))

    def norms(self, values: np.ndarray | None = None, absent: Sequence[str] = (), **fields: object) -> list[Alert]:
        """One norm vector, a step on."""
        self.step += 1
        values = self.draw() if values is None else np.asarray(values, dtype=float)
        present = np.array([name not in absent for name in self.names])
        record = NormVector(self.step, self.step, self.table, pack_values(values), pack_mask(present), **fields)
        return self.feed(record)

    def healthy(self, count: int, **fields: object) -> None:
        """That many healthy norm vectors."""
        for _ in range(count):
            self.norms(**fields)

    def with_(self, changes: dict[str, float], absent: Sequence[str] = (), **fields: object) -> list[Alert]:
        """A healthy norm vector in which some layers have these values."""
        values = self.draw()
        for name, value in changes.items():
            values[self.names.index(name)] = value
        return self.norms(values, absent, **fields)

    def metrics(self, **values: float) -> list[Alert]:
        """Scalars at the present step."""
        return self.feed(Metrics(max(self.step, 0), max(self.step, 0), values))

    def finish(self) -> list[Alert]:
        """The end of the run."""
        return self.feed(RunFinished(max(self.step, 0), "finished"))

    @property
    def rules(self) -> list[str]:
        """The rules that alerted, in order."""
        return [alert.rule for alert in self.alerts]
