"""`mlflow.exceptions`: what scripts catch. `MlflowException` is raised for misuse as MLflow raises it."""

from __future__ import annotations

from typing import Any

__all__ = ["ExecutionException", "MissingConfigException", "MlflowException", "RestException"]


class MlflowException(Exception):
    """Misuse; `error_code` as in MLflow."""

    def __init__(self, message: Any, error_code: str = "INTERNAL_ERROR", **kwargs: Any) -> None:
        super().__init__(str(message))
        self.message = str(message)
        self.error_code = error_code
        self.json_kwargs = kwargs


class RestException(MlflowException):
    """Never raised here."""


class ExecutionException(MlflowException):
    """Never raised here."""


class MissingConfigException(MlflowException):
    """Never raised here."""
