"""For adapters that keep everything which needs the SDK in a writer, made by `open`: the rest of the contract."""

from __future__ import annotations

from typing import Protocol

from tracker_bridge.adapter._contract import Adapter, OptionsT
from tracker_bridge.adapter._items import Batch


class RunWriter(Protocol):
    """One run in the tracker while it is open; the methods have the meaning that they have in `Adapter`."""

    def write(self, batch: Batch) -> None:
        """Hand the batch over. Raises `RetryLater`, `Rejected`."""

    def flush(self) -> None:
        """Make it durable. Raises `RetryLater`."""

    def close(self, status: str | None) -> None:
        """End the run. Raises `RetryLater`."""


class WriterAdapter(Adapter[OptionsT]):
    """Passes everything on to `writer`, which a subclass makes in `open`, importing its module there and not before."""

    writer: RunWriter | None = None

    def write(self, batch: Batch) -> None:
        """Hand the batch to the writer."""
        self._opened().write(batch)

    def flush(self) -> None:
        """Flush the writer."""
        self._opened().flush()

    def close(self, status: str | None) -> None:
        """Close the writer; one that raises is kept, to be closed again."""
        if self.writer is not None:
            self.writer.close(status)
            self.writer = None

    def _opened(self) -> RunWriter:
        if self.writer is None:
            raise RuntimeError(f"{type(self).__name__} is not open")
        return self.writer
