"""The common part of the loopback stand-ins: an HTTP server that records every request and misbehaves on demand.

Standard library only, bound to 127.0.0.1, every thread joined by `close`. A stand-in says what kind of request it got
(`classify`) and what a well-behaved server replies (`answer`); the fault hook is asked before each reply.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived. `number` counts the requests of this `kind` from 1."""

    kind: str
    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    time: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """How to misbehave: wait `delay` s, then send `reply` instead of the real one, or none at all (`drop`).

    `drop="before"` closes the connection and applies nothing; `drop="after"` applies the request and loses the reply.
    With neither `reply` nor `drop` the fault is the delay only.
    """

    reply: Reply | None = None
    delay: float = 0.0
    drop: Literal["before", "after"] | None = None


FaultHook = Callable[[Request], "Fault | None"]


class LoopbackServer:
    """Base of the stand-ins. `requests` holds everything received; `faults` may be replaced at any time."""

    def __init__(self, faults: FaultHook | None = None, *, port: int = 0) -> None:
        self.faults = faults
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        self._counts: Counter[str] = Counter()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name=type(self).__name__)
        self._thread.start()

    def classify(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> str:
        """The kind of this request, as faults and `count` name it."""
        raise NotImplementedError

    def answer(self, request: Request) -> Reply:
        """Apply the request and reply as a healthy server does. Called under `lock`."""
        raise NotImplementedError

    def count(self, kind: str) -> int:
        """How many requests of `kind` have arrived."""
        with self.lock:
            return self._counts[kind]

    def close(self) -> None:
        """Stop serving and join every thread; delayed replies are abandoned."""
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply | None:
        kind = self.classify(method, path, headers, body)
        with self.lock:
            self._counts[kind] += 1
            request = Request(kind, self._counts[kind], method, path, headers, body, time.time())
            self.requests.append(request)
        fault = self.faults(request) if self.faults is not None else None
        if fault is not None and fault.delay and self._closing.wait(fault.delay):
            return None
        if fault is not None and (fault.drop == "before" or fault.reply is not None):
            return fault.reply
        reply = self._answer(request)
        return None if fault is not None and fault.drop == "after" else reply

    def _answer(self, request: Request) -> Reply:
        with self.lock:
            return self.answer(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the tests, not news for the terminal."""


def _handler(owner: LoopbackServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5  # an idle or half-open connection must not keep a thread for longer

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
            reply = owner._serve(self.command, self.path, dict(self.headers.items()), body)
            self.close_connection = True
            if reply is None:
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _do

        def _chunks(self) -> bytes:
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler
