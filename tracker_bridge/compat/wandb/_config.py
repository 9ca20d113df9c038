"""`wandb.config`: hyper-parameters that may be read and set by attribute and by item, and are logged as params."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracker_bridge.compat.wandb._items import Items
from tracker_bridge.compat.wandb.errors import ConfigError

__all__ = ["Config", "parsed"]


class Config(Items):
    """A value once set may only change with `update(..., allow_val_change=True)`."""

    def __repr__(self) -> str:
        return str(dict(self.items()))

    def __len__(self) -> int:
        return len(self._items)

    def keys(self) -> list[str]:
        """The names that do not begin with an underscore."""
        return [key for key in self._items if not key.startswith("_")]

    def items(self) -> list[tuple[str, Any]]:
        """Names and values."""
        return [(key, self._items[key]) for key in self.keys()]

    def values(self) -> list[Any]:
        """The values."""
        return [self._items[key] for key in self.keys()]

    def as_dict(self) -> dict[str, Any]:
        """A copy as a dictionary."""
        return dict(self.items())

    def update(self, d: Any, allow_val_change: bool | None = None) -> None:
        """Set values from a mapping, a Namespace, absl's flags or a YAML file. Raises `ConfigError` on a change."""
        news = {key.strip("-"): value for key, value in parsed(d).items()}
        for key, value in news.items():
            if not allow_val_change and key in self._items and not _equal(self._items[key], value):
                raise ConfigError(
                    f'Attempted to change value of key "{key}" from {self._items[key]} to {value}\n'
                    "If you really want to do this, pass allow_val_change=True to config.update()"
                )
        self._items.update(news)
        if news:
            self._log(news)

    def setdefaults(self, d: Any) -> None:
        """Set those values that are not set."""
        self.update({key: value for key, value in parsed(d).items() if key.strip("-") not in self._items})

    def persist(self) -> None:
        """Nothing: each value was logged when it was set."""

    def update_locked(self, d: Any, user: Any = None, _allow_val_change: Any = None) -> None:
        """As `update`, with changes allowed."""
        del user, _allow_val_change
        self.update(d, allow_val_change=True)


def parsed(config: Any) -> dict[str, Any]:
    """The values of anything that `wandb.init(config=...)` takes. Raises `TypeError` for what it does not."""
    if config is None:
        return {}
    if isinstance(config, Config):
        return config.as_dict()
    if isinstance(config, (str, os.PathLike)):
        return _from_file(Path(config))
    if type(config).__module__.startswith("absl.flags") and hasattr(config, "flag_values_dict"):
        return dict(config.flag_values_dict())
    if isinstance(config, Mapping):
        return {str(key): value for key, value in config.items()}
    if hasattr(config, "__dict__"):
        return dict(vars(config))
    raise TypeError(f"config must be a dict or have a __dict__ attribute, not {type(config).__name__}")


def _from_file(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML

    loaded = YAML(typ="safe").load(path.read_text())
    values = dict(loaded or {})
    values.pop("wandb_version", None)
    # W&B's files may have {"value": ..., "desc": ...} under a name.
    return {
        str(key): value["value"] if isinstance(value, dict) and "value" in value else value
        for key, value in values.items()
    }


def _equal(old: Any, new: Any) -> bool:
    try:
        return bool(old == new)
    except (TypeError, ValueError):
        return old is new
