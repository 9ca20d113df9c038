"""What the adapters around live objects share: no options, no opening, never ending the object."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from tracker_bridge.adapter import Adapter, Batch, Item, Options, Rejected


class LiveOptions(Options, frozen=True, kw_only=True):
    """No options: the script has made the object as it wants it."""


class LiveAdapter(Adapter[LiveOptions]):
    """Writes to `live`, which is the script's. `tracker` is what its kind is called in messages."""

    options_type = LiveOptions
    tracker: ClassVar[str]

    def __init__(self, live: Any) -> None:
        super().__init__(LiveOptions())
        self.live = live

    def held_open(self) -> AbstractContextManager[object]:
        """While this is entered the script's closing of the object waits, where that can be had."""
        return nullcontext()

    @abc.abstractmethod
    def ended(self) -> bool:
        """Whether the script has closed the object."""

    @abc.abstractmethod
    def put(self, item: Item) -> None:
        """Log one item. Raises `Rejected`."""

    def write(self, batch: Batch) -> None:
        """Log the items. Raises `Rejected` with those that the object does not take (all, once it is closed)."""
        refused: list[Item] = []
        reason = ""
        for at, item in enumerate(batch.items):
            try:
                with self.held_open():
                    if not self.ended():
                        self.put(item)
                        continue
            except Rejected as problem:
                refused.append(item)
                reason = problem.reason
                continue
            except Exception:
                if not self.ended():
                    raise
            refused += batch.items[at:]
            reason = f"the script had closed its {self.tracker} before"
            break
        if refused:
            raise Rejected(refused, reason)

    def close(self, status: str | None) -> None:
        """The object stays as it is."""
