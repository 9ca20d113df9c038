"""`wandb.summary`: the last value of each name, and values that a script sets itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Summary"]

_PLAIN = (int, float, str)


class Summary:
    """Reads give the last logged or set value; a set value is logged under `summary/<name>`."""

    def __init__(self, log: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        object.__setattr__(self, "_items", {})
        object.__setattr__(self, "_log", log or (lambda _: None))

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

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __getattr__(self, key: str) -> Any:
        try:
            return self._items[key]
        except KeyError:
            raise AttributeError(f"{self.__class__!r} object has no attribute {key!r}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dictionary."""
        return self._items.get(key, default)

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
