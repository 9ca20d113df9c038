"""`wandb.errors`: the names that scripts catch. `Error`, `UsageError` and `ConfigError` are raised here too."""

from __future__ import annotations

from typing import Any

__all__ = [
    "AuthenticationError",
    "CommError",
    "ConfigError",
    "Error",
    "UnsupportedError",
    "UsageError",
    "WandbCoreNotAvailableError",
]


class Error(Exception):
    """Base of W&B's errors."""

    def __init__(self, message: str = "", context: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.context = context or {}


class CommError(Error):
    """No connection; never raised here."""

    def __init__(self, msg: str = "", exc: Exception | None = None) -> None:
        super().__init__(msg)
        self.exc = exc


class AuthenticationError(CommError):
    """No login; never raised here."""


class UsageError(Error):
    """A call at the wrong time."""


class UnsupportedError(UsageError):
    """An unsupported feature; never raised here (`NotImplementedError` is)."""


class WandbCoreNotAvailableError(Error):
    """Never raised here."""


class ConfigError(Error):
    """A config value that is already set to another one."""
