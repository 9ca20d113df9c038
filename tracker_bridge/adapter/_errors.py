"""The two answers an adapter can give besides success. Any other exception is a bug that the courier contains."""

from __future__ import annotations

from collections.abc import Sequence

from tracker_bridge.adapter._items import Item


class AdapterError(Exception):
    """Base of what an adapter raises on purpose."""


class RetryLater(AdapterError):
    """The tracker cannot take anything now (network, 429, 5xx, a lock). Nothing of the batch counts as stored.

    `after` is in seconds (a server's Retry-After); None leaves the wait to the courier's back-off.
    """

    def __init__(self, reason: str, *, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Rejected(AdapterError):
    """The tracker refused `items` for good; everything else of the batch is stored.

    With several items the courier sends the halves again, so one bad item never takes others with it; a single item
    is dropped, counted under `reason` and kept for inspection.
    """

    def __init__(self, items: Sequence[Item], reason: str) -> None:
        super().__init__(reason)
        self.items = tuple(items)
        self.reason = reason
