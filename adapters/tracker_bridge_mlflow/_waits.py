"""How long the MLflow client may block: short, because the courier waits and retries itself.

MLflow's defaults retry for four minutes inside one call. They are environment variables that the client reads at each
call, so they are set for the process (of the delivery, as a rule), unless the user has set them.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any
from urllib.parse import urlsplit

_SETTINGS = {
    # Also because the client repeats a `create` whose reply was lost, and so makes a second run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    # The client would sleep as long as the server says, with the courier unable to stop it.
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

_asked: dict[tuple[str, int], float] = {}
# Server -> the moment (monotonic seconds) until which it asked to be left alone. As wide as the client's own cache of
# connections, which belongs to the process as well.


def shorten_waits() -> None:
    """Apply the settings, and note the Retry-After of refused requests. Call before the first request."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # The client keeps no header of a failed answer; without this the courier's own back-off decides.
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        _note_retry_after()


def retry_after(tracking_uri: str) -> float | None:
    """Seconds that this server last asked to wait, if that time is not over."""
    parts = urlsplit(tracking_uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    left = _asked.get((parts.hostname or "", port), 0.0) - time.monotonic()
    return left if left > 0 else None


def _note_retry_after() -> None:
    from mlflow.environment_variables import (
        MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR,
        MLFLOW_HTTP_REQUEST_BACKOFF_JITTER,
        MLFLOW_HTTP_REQUEST_MAX_RETRIES,
        MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER,
    )
    from mlflow.utils.request_utils import _TRANSIENT_FAILURE_RESPONSE_CODES, _get_request_session
    from urllib3.util import Retry

    class NotingRetry(Retry):
        def increment(self, *arguments: Any, **named: Any) -> Any:
            response, pool = named.get("response"), named.get("_pool")
            header = None if response is None else response.headers.get("Retry-After")
            if header is not None and pool is not None:
                with contextlib.suppress(Exception):
                    _asked[pool.host, pool.port] = time.monotonic() + self.parse_retry_after(header)
            return super().increment(*arguments, **named)

    session = _get_request_session(
        MLFLOW_HTTP_REQUEST_MAX_RETRIES.get(),
        MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR.get(),
        MLFLOW_HTTP_REQUEST_BACKOFF_JITTER.get(),
        _TRANSIENT_FAILURE_RESPONSE_CODES,
        True,
        MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER.get(),
    )
    for adapter in session.adapters.values():
        adapter.max_retries.__class__ = NotingRetry
