"""How a run's delivery stands, per backend, and the table that shows it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracker_bridge.rundir import Health

REMOVED = "directory_removed"
"""The reason in `Delivery.not_written` of what somebody has removed with the run directory."""


@dataclass(frozen=True, slots=True)
class BackendDelivery:
    """One backend: `sent` and `pending` are records, `points` scalars; `dropped` gives values by reason."""

    health: Health
    sent: int
    pending: int
    points: int
    dropped: Mapping[str, int]
    error: str | None
    url: str | None


@dataclass(frozen=True, slots=True)
class Delivery(Mapping[str, BackendDelivery]):
    """The answer of `Run.close`: a mapping of backend name to how it stands.

    `not_written` counts records that never reached the journal, by reason (a full disk, say). `directory_removed` are
    those that somebody has removed with the run directory: nobody knows any more which of them were delivered.
    """

    backends: Mapping[str, BackendDelivery]
    not_written: Mapping[str, int]
    run_dir: Path | None

    def __getitem__(self, name: str) -> BackendDelivery:
        return self.backends[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.backends)

    def __len__(self) -> int:
        return len(self.backends)

    @property
    def complete(self) -> bool:
        """Everything that was logged is in every backend."""
        return not self.not_written and all(one.pending == 0 and not one.dropped for one in self.backends.values())

    @property
    def command(self) -> str | None:
        """The command that delivers what is pending; None if nothing is."""
        if self.run_dir is None or not any(one.pending for one in self.backends.values()):
            return None
        return sync_command(self.run_dir)

    def __str__(self) -> str:
        rows = [("backend", "state", "sent", "pending", "dropped")]
        for name, one in self.backends.items():
            rows.append((name, one.health, str(one.sent), str(one.pending), _reasons(one.dropped)))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
        ]
        lines += [f"{name}: {one.error}" for name, one in self.backends.items() if one.error and one.pending]
        never = {reason: count for reason, count in self.not_written.items() if reason != REMOVED}
        if never:
            lines.append(f"never written to disk: {_reasons(never)}")
        if REMOVED in self.not_written:
            lines.append(f"gone with the run directory, delivered or not: {self.not_written[REMOVED]}")
        if self.command:
            lines.append(f"deliver the rest with: {self.command}")
        return "\n".join(lines)


def sync_command(run_dir: Path) -> str:
    """What to type to deliver a run, from any working directory."""
    return shlex.join(["tracker-bridge", "sync", str(run_dir)])


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} ({reason})" for reason, count in counts.items()) or "0"
