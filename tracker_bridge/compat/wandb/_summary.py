"""`wandb.summary`: the last value of each name, and values that a script sets itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracker_bridge.compat.wandb._items import Items

__all__ = ["Summary"]

_PLAIN = (int, float, str)


class Summary(Items):
    """Reads give the last logged or set value; a set value is logged under `summary/<name>`."""

    def seen(self, values: Mapping[str, Any]) -> None:
        """Take note of logged numbers and texts. A tensor is kept without its graph, and is not read."""
        items = self._items
        for name, value in values.items():
            if isinstance(value, _PLAIN):
                items[name] = value
            elif hasattr(value, "detach"):
                if value.numel() == 1:
                    items[name] = value.detach()
            elif getattr(value, "size", None) == 1:
                items[name] = value

    def __repr__(self) -> str:
        return str(self._items)

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def keys(self) -> list[str]:
        """The names."""
        return list(self._items)

    def items(self) -> list[tuple[str, Any]]:
        """Names and values."""
        return list(self._items.items())

    def update(self, d: Mapping[str, Any]) -> None:
        """Set values."""
        self._items.update(d)
        self._log(d)
