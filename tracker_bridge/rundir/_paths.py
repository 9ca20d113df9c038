"""Where everything of a run lies. Nothing here touches a file but `find_runs`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Paths inside one run directory."""

    root: Path

    @property
    def manifest(self) -> Path:
        """`run.json`."""
        return self.root / "run.json"

    @property
    def manifest_lock(self) -> Path:
        """Held while `run.json` is replaced."""
        return self.root / ".run.lock"

    @property
    def writer_lock(self) -> Path:
        """Held by the process that appends to the journal, as long as it lives."""
        return self.root / ".writer.lock"

    @property
    def delivery_lock(self) -> Path:
        """Held by whoever drains the journal to the run's own backends."""
        return self.root / ".delivery.lock"

    def replay_lock(self, name: str) -> Path:
        """Held by whoever drains the journal to `name`, the target of a replay, beside the run's own delivery."""
        return self.backends / name / ".lock"

    def held_by_deliveries(self) -> list[Path]:
        """Every lock that some delivery of this run may hold now."""
        return [self.delivery_lock, *self.backends.glob("*/.lock")]

    @property
    def journal(self) -> Path:
        """Folder of the segments."""
        return self.root / "journal"

    @property
    def files(self) -> Path:
        """Copies of logged artifacts."""
        return self.root / "files"

    @property
    def log(self) -> Path:
        """What the delivery process and the SDKs in it print."""
        return self.root / "delivery.log"

    @property
    def notices(self) -> Path:
        """Lines for the user, shown by the training process or by `status`."""
        return self.root / "notices.log"

    @property
    def alerts(self) -> Path:
        """Folder of the alerts' own journal."""
        return self.root / "health" / "alerts"

    @property
    def health_memory(self) -> Path:
        """What the health rules remember, for the next process."""
        return self.root / "health" / "memory.msgpack"

    @property
    def backends(self) -> Path:
        """One folder for each backend."""
        return self.root / "backends"

    def backend(self, name: str) -> Path:
        """That backend's private folder."""
        return self.backends / name

    def state(self, name: str) -> Path:
        """That backend's cursor and counters."""
        return self.backends / name / "state.json"

    def rejected(self, name: str) -> Path:
        """What the tracker refused, one JSON object a line."""
        return self.backends / name / "rejected.jsonl"


def find_runs(queue_dir: Path) -> Iterator[RunPaths]:
    """The run directories right below `queue_dir`, oldest name first; none if it does not exist."""
    if not queue_dir.is_dir():
        return
    for entry in sorted(queue_dir.iterdir()):
        if (entry / "run.json").is_file():
            yield RunPaths(entry)
