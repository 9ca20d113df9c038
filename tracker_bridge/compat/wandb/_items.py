"""Values by name that may be read and set by attribute and by item, as W&B's `config` and `summary` are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Items"]


class Items:
    """What was set, in order. Subclasses say in `update` what setting means."""

    def __init__(self, log: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        object.__setattr__(self, "_items", {})
        object.__setattr__(self, "_log", log or (lambda _: None))

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

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dictionary."""
        return self._items.get(key, default)

    def update(self, d: Any) -> None:
        """Set values."""
        raise NotImplementedError
