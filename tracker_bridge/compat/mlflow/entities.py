"""`mlflow.entities`: plain data about runs and experiments of this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Experiment",
    "LifecycleStage",
    "Metric",
    "Param",
    "Run",
    "RunData",
    "RunInfo",
    "RunStatus",
    "RunTag",
    "ViewType",
]


class RunStatus:
    """A run's states, by number as in MLflow."""

    RUNNING, SCHEDULED, FINISHED, FAILED, KILLED = 1, 2, 3, 4, 5
    _NAMES: Mapping[int, str] = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}

    @classmethod
    def to_string(cls, status: int) -> str:
        """The name of a state."""
        return cls._NAMES[status]

    @classmethod
    def from_string(cls, name: str) -> int:
        """The number of a state."""
        return next(number for number, known in cls._NAMES.items() if known == name)

    @classmethod
    def is_terminated(cls, status: int) -> bool:
        """Whether a run in this state has ended."""
        return status in (cls.FINISHED, cls.FAILED, cls.KILLED)


class LifecycleStage:
    """Deleted or not."""

    ACTIVE, DELETED = "active", "deleted"


class ViewType:
    """Which runs a search is to look at."""

    ACTIVE_ONLY, DELETED_ONLY, ALL = 1, 2, 3


@dataclass(frozen=True)
class Metric:
    """One value of a metric; `timestamp` in milliseconds."""

    key: str
    value: float
    timestamp: int = 0
    step: int = 0


@dataclass(frozen=True)
class Param:
    """One parameter."""

    key: str
    value: str


@dataclass(frozen=True)
class RunTag:
    """One tag."""

    key: str
    value: str


@dataclass(frozen=True)
class Experiment:
    """An experiment: here, a name."""

    experiment_id: str
    name: str
    artifact_location: str = ""
    lifecycle_stage: str = LifecycleStage.ACTIVE
    tags: Mapping[str, str] = field(default_factory=dict)
    creation_time: int = 0
    last_update_time: int = 0


@dataclass
class RunInfo:
    """About a run; times in milliseconds."""

    run_id: str
    run_name: str
    experiment_id: str
    artifact_uri: str
    status: str = "RUNNING"
    start_time: int = 0
    end_time: int | None = None
    user_id: str = ""
    lifecycle_stage: str = LifecycleStage.ACTIVE

    @property
    def run_uuid(self) -> str:
        """The run's id."""
        return self.run_id


@dataclass
class RunData:
    """What a run holds: the latest value of each metric, params and tags as texts."""

    metrics: dict[str, float] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def to_dictionary(self) -> dict[str, Any]:
        """Plain data."""
        return {"metrics": dict(self.metrics), "params": dict(self.params), "tags": dict(self.tags)}


class Run:
    """A run: `info` and `data`."""

    def __init__(self, info: RunInfo, data: RunData) -> None:
        self._info, self._data = info, data

    @property
    def info(self) -> RunInfo:
        """About the run."""
        return self._info

    @property
    def data(self) -> RunData:
        """What it holds."""
        return self._data

    def to_dictionary(self) -> dict[str, Any]:
        """Plain data."""
        return {"info": vars(self.info), "data": self.data.to_dictionary()}
