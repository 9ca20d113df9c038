"""An HTTP proxy in front of a real server (`mlflow server`, for one) that can refuse, delay, lose or replace replies.

It forwards whole requests to `upstream` and knows nothing about their meaning; `kind` of a request is its method and
path without the query, e.g. `POST /api/2.0/mlflow/runs/log-batch`.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from urllib.parse import urlsplit

from tests.standins.loopback import FaultHook, LoopbackServer, Reply, Request

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "content-length", "host"}


class FaultProxy(LoopbackServer):
    """Point the client at `url`. While `faults` returns None everything passes through unchanged."""

    def __init__(self, upstream: str, faults: FaultHook | None = None, *, timeout: float = 60.0, port: int = 0) -> None:
        address = urlsplit(upstream)
        self._host, self._upstream_port, self._timeout = address.hostname or "", address.port or 80, timeout
        super().__init__(faults, port=port)

    def classify(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> str:
        """Method and path without the query."""
        return f"{method} {urlsplit(path).path}"

    def answer(self, request: Request) -> Reply:
        """The upstream's reply; 502 where it does not answer."""
        connection = http.client.HTTPConnection(self._host, self._upstream_port, timeout=self._timeout)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(request.method, request.path, request.body, headers)
            response = connection.getresponse()
            body = response.read()
        except OSError as error:
            return Reply(502, str(error).encode())
        finally:
            connection.close()
        kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
        return Reply(response.status, body, kept)

    def _answer(self, request: Request) -> Reply:
        # Forwarding needs no shared state, and one slow upstream request must not hold up the others.
        return self.answer(request)
