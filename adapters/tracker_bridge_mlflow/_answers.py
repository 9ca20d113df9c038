"""What an exception of the MLflow client means: try later, or these data are refused.

Only what MLflow says is wrong with the data is a refusal. Everything else - network, 5xx, a lock, missing rights, a
deleted run - may be mended by somebody, and until then the data stay in the journal.
"""

from __future__ import annotations

import re

from tracker_bridge.adapter import RetryLater
from tracker_bridge_mlflow._waits import retry_after

_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "REQUEST_LIMIT_EXCEEDED"})
_RIGHTS = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"})
_TOO_LARGE = re.compile(r"int too (large|big) to convert|value out of range", re.IGNORECASE)
# The words of Python's database drivers and of protobuf about an integer that a column or a field cannot hold. MLflow
# passes the former on as an internal error, the latter as it is.
_INACTIVE = re.compile(r"must be in (the )?'?active'? (state|lifecycle)", re.IGNORECASE)
_LONGEST = 400


def error_code(error: BaseException) -> str:
    """MLflow's name of the error, empty if it has none."""
    code = getattr(error, "error_code", None)
    return code if isinstance(code, str) else ""


def is_refusal(error: BaseException) -> bool:
    """Whether the data are at fault, so that sending them again cannot help."""
    if isinstance(error, OSError):
        return False
    return bool(_TOO_LARGE.search(str(error))) or (error_code(error) in _REFUSALS and not _INACTIVE.search(str(error)))


def later(error: BaseException, tracking_uri: str) -> RetryLater:
    """`error` as the request to come again."""
    text = short(error)
    if error_code(error) in _RIGHTS:
        text += " (check MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN)"
    return RetryLater(text, after=retry_after(tracking_uri))


def short(error: BaseException) -> str:
    """One line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def is_timeout(error: BaseException | None) -> bool:
    """Whether the server took too long over one request."""
    while error is not None:
        if type(error).__name__ in ("Timeout", "ReadTimeout", "ConnectTimeout", "ReadTimeoutError"):
            return True
        error = error.__cause__ or error.__context__
    return False
