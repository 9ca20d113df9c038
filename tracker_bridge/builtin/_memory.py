"""`memory`: keeps the items in the process that delivers; for tests in thread mode."""

from __future__ import annotations

from typing import ClassVar

from tracker_bridge.adapter import Adapter, Batch, Capabilities, Item, Opened, Options, ParamRule, RunInfo

_stored: dict[str, list[Item]] = {}


class MemoryOptions(Options, frozen=True, kw_only=True):
    """No options."""


class MemoryAdapter(Adapter[MemoryOptions]):
    """Keeps every item under the run's id; see `stored`."""

    options_type = MemoryOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        step_type="float",
        params=ParamRule(separator=None, typed=True),
        media=frozenset({"text", "histogram", "artifact"}),
    )

    def open(self, run: RunInfo) -> Opened:
        """Begin, or go on with, the run's list."""
        self._items = _stored.setdefault(run.run_id, [])
        return Opened({"run_id": run.run_id})

    def write(self, batch: Batch) -> None:
        """Keep the batch."""
        self._items.extend(batch.items)

    def close(self, status: str | None) -> None:
        """The status is not kept."""


def stored(run_id: str) -> list[Item]:
    """What the memory backend of that run got, in order; empty if it got nothing."""
    return list(_stored.get(run_id, ()))
