"""`read(run_dir)`: one run's identity, params, metrics and norms from its directory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_bridge.journal import Definitions, Entry, Gap, scan
from tracker_bridge.reader._norms import GradientNormTable, norm_table
from tracker_bridge.records import (
    Alert,
    AnyRecord,
    Artifact,
    Dropped,
    Metrics,
    RunFinished,
    RunStarted,
    Text,
)
from tracker_bridge.rundir import Manifest, RunPaths, load_manifest

Series = tuple["npt.NDArray[np.int64] | npt.NDArray[np.float64]", "npt.NDArray[np.float64]"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process that wrote to the run. `status` and `finished_ns` are None if it did not say that it ended."""

    number: int
    started_ns: int
    pid: int
    host: str
    provenance: Mapping[str, Any]
    status: str | None = None
    finished_ns: int | None = None


@dataclass(slots=True)
class _Summary:
    definitions: Definitions = field(default_factory=Definitions)
    attempts: list[Attempt] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)


class RunReader:
    """What a run directory holds. Everything but the series is read once, when it is first asked for.

    `metrics` and the norms go through the journal on each call and keep only their result in memory.
    """

    def __init__(self, paths: RunPaths, manifest: Manifest) -> None:
        self._paths = paths
        self._manifest = manifest

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._manifest.run_id

    @property
    def dir(self) -> Path:
        """The run directory."""
        return self._paths.root

    @property
    def params(self) -> dict[str, Any]:
        """Hyper-parameters as they are now, nested."""
        return self._summary.definitions.params

    @property
    def tags(self) -> dict[str, str | None]:
        """Tags as they are now; the value is None for a plain tag."""
        return self._summary.definitions.tags

    @property
    def status(self) -> str:
        """`running`, `finished`, `failed`, `killed`, or `crashed` (its process is gone and never said goodbye)."""
        if self._manifest.status != "running":
            return self._manifest.status
        if self.attempts and self.attempts[-1].status is not None:
            return self.attempts[-1].status
        owner = self._manifest.owner
        return "crashed" if owner is not None and not owner.is_alive() else "running"

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """One for each process that wrote to the run, oldest first."""
        return tuple(self._summary.attempts)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Records that are gone from the journal, with the reason."""
        return tuple(self._summary.gaps)

    @property
    def dropped(self) -> dict[str, int]:
        """Records that never reached the journal, by reason."""
        return dict(self._summary.dropped)

    def metrics(self) -> dict[str, Series]:
        """Scalar series by name: (steps, values) in the order in which they were logged.

        `steps` is int64 [N], float64 if one of that series is a fraction; `values` is float64 [N].
        """
        steps: dict[str, array[int] | array[float]] = {}
        values: dict[str, array[float]] = {}
        for record in self._records():
            if not isinstance(record, Metrics):
                continue
            for name, value in record.values.items():
                if name not in values:
                    steps[name], values[name] = array("q"), array("d")
                if isinstance(record.step, float) and steps[name].typecode == "q":
                    steps[name] = array("d", steps[name])
                steps[name].append(record.step)  # type: ignore[arg-type]
                values[name].append(value)
        return {name: (_numpy(steps[name]), np.frombuffer(held, dtype=np.float64)) for name, held in values.items()}

    def gradient_norms(self) -> GradientNormTable:
        """The per-layer gradient norms of the run."""
        return self.norms("gradients")

    def norms(self, kind: str) -> GradientNormTable:
        """The per-layer norms of another kind, e.g. `parameters`; no rows if there are none."""
        return norm_table(self._records(), kind)

    def texts(self) -> list[Text]:
        """Logged texts."""
        return list(self._summary.texts)

    def artifacts(self) -> list[Artifact]:
        """Logged files; a relative `path` is relative to `dir`."""
        return list(self._summary.artifacts)

    def alerts(self) -> list[Alert]:
        """What the health rules found, in the order of the records that caused it."""
        found = (item.record for item in scan(self._paths.alerts) if isinstance(item, Entry))
        kept = [record for record in found if isinstance(record, Alert)]
        return sorted([*self._summary.alerts, *kept], key=lambda alert: alert.cause)

    def to_arrow(self) -> Any:
        """The scalar series as one long `pyarrow.Table`; see `tracker_bridge.exporters.to_arrow`."""
        from tracker_bridge.exporters import to_arrow

        return to_arrow(self)

    def to_pandas(self) -> Any:
        """The scalar series as one long `pandas.DataFrame`; see `tracker_bridge.exporters.to_pandas`."""
        from tracker_bridge.exporters import to_pandas

        return to_pandas(self)

    def __repr__(self) -> str:
        return f"RunReader({self.run_id!r}, dir={str(self.dir)!r})"

    def _records(self) -> Iterator[AnyRecord]:
        return (item.record for item in scan(self._paths.journal) if isinstance(item, Entry))

    @cached_property
    def _summary(self) -> _Summary:
        summary = _Summary()
        for item in scan(self._paths.journal):
            if isinstance(item, Gap):
                summary.gaps.append(item)
                continue
            record = item.record
            summary.definitions.apply(record)
            if isinstance(record, RunStarted):
                summary.attempts.append(
                    Attempt(record.attempt, record.time_ns, record.pid, record.host, record.provenance)
                )
            elif isinstance(record, RunFinished):
                if summary.attempts:
                    ended = replace(summary.attempts[-1], status=record.status, finished_ns=record.time_ns)
                    summary.attempts[-1] = ended
            elif isinstance(record, Text):
                summary.texts.append(record)
            elif isinstance(record, Artifact):
                summary.artifacts.append(record)
            elif isinstance(record, Alert):
                summary.alerts.append(record)
            elif isinstance(record, Dropped):
                for reason, count in record.reasons.items():
                    summary.dropped[reason] = summary.dropped.get(reason, 0) + count
        return summary


def read(run_dir: str | os.PathLike[str]) -> RunReader:
    """Open a run directory for reading. Raises `rundir.NotARunError` if there is no readable run in it."""
    paths = RunPaths(Path(run_dir))
    return RunReader(paths, load_manifest(paths))


def _numpy(held: array[int] | array[float]) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    if held.typecode == "q":
        return np.frombuffer(held, dtype=np.int64)
    return np.frombuffer(held, dtype=np.float64)
