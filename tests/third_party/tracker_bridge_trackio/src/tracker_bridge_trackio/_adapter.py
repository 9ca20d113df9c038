"""The adapter: its options and capabilities, and a `Store` while it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from tracker_bridge.adapter import (
    Adapter,
    Batch,
    Capabilities,
    NameRule,
    Opened,
    Options,
    ParamRule,
    Requirement,
    RunInfo,
    TagRule,
)

if TYPE_CHECKING:
    from tracker_bridge_trackio._store import Store


class TrackioOptions(Options, frozen=True, kw_only=True):
    """What `backends: {trackio: {...}}` takes, with the names of `trackio.init`; each defaults to what the run says."""

    project: Union[str, None] = None
    name: Union[str, None] = None
    group: Union[str, None] = None


class TrackioAdapter(Adapter[TrackioOptions]):
    """Writes trackio's local SQLite store (`TRACKIO_DIR`), from which `trackio show` reads."""

    options_type = TrackioOptions
    capabilities = Capabilities(
        max_points=50_000,
        max_items=5_000,
        steps="any",
        step_type="int",
        non_finite="native",
        # Each row has an id of ours, and trackio ignores one that it has.
        duplicates="ignored",
        # Keys that trackio's readers add to a row, or that it renames itself.
        names=NameRule(reserved=("project|run|timestamp|step|time|metrics", "__.*")),
        params=ParamRule(separator="/", typed=True, mutable=True),
        tags=TagRule(form="text"),
        media=frozenset({"text", "histogram", "artifact", "image"}),
    )
    requires = (Requirement("trackio", "tracker-bridge-trackio"),)

    _store: Store | None = None

    def open(self, run: RunInfo) -> Opened:
        """Create or continue the run. Raises `RetryLater` if the store cannot be written, or is another one."""
        from tracker_bridge_trackio._store import Store

        self._store = Store(self.options, run)
        return self._store.open()

    def write(self, batch: Batch) -> None:
        """Store the batch in one transaction; sent again it stores nothing twice. Raises `RetryLater`."""
        self._open_store().write(batch)

    def flush(self) -> None:
        """Store params, tags and names, which trackio keeps in one place. Raises `RetryLater`."""
        self._open_store().flush()

    def close(self, status: str | None) -> None:
        """Store the status."""
        if self._store is not None:
            self._store.close(status)
            self._store = None

    def _open_store(self) -> Store:
        if self._store is None:
            raise RuntimeError("the adapter is not open")
        return self._store
