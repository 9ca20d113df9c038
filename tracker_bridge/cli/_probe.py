"""Whether a server answers at all. Any answer over HTTP counts, whatever its status."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

TIMEOUT = 3.0
"""Seconds for connecting, and again for the answer."""


@dataclass(frozen=True, slots=True)
class Probe:
    """`address` is free of secrets; `text` is the status or the reason."""

    address: str
    ok: bool
    text: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def probe(url: str, timeout: float = TIMEOUT) -> Probe:
    """Ask the server for its front page, by the proxies that the environment names. Never raises."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    try:
        address = urlunsplit((parts.scheme, f"{shown}:{parts.port}" if parts.port else shown, parts.path, "", ""))
    except ValueError:
        return Probe(address=f"{parts.scheme}://{shown}", ok=False, text="the port is not a number")
    if parts.scheme not in ("http", "https"):
        return _connect(address, host, parts.port, timeout)
    headers = {"User-Agent": "tracker-bridge-doctor"}
    request = urllib.request.Request(address, method="GET", headers=headers)  # noqa: S310 (the scheme is checked above)
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout) as answer:
            return Probe(address=address, ok=True, text=f"HTTP {answer.status}")
    except urllib.error.HTTPError as error:
        with error:
            return Probe(address=address, ok=True, text=f"HTTP {error.code}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Probe(address=address, ok=False, text=_reason(error, timeout))


def _connect(address: str, host: str, port: int | None, timeout: float) -> Probe:
    if not host or port is None:
        return Probe(address=address, ok=True, text="not checked: no host and port in it")
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return Probe(address=address, ok=True, text="connection accepted")
    except OSError as error:
        return Probe(address=address, ok=False, text=_reason(error, timeout))


def _reason(error: BaseException, timeout: float) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(inner, ssl.SSLError):
        return f"TLS failed ({inner.reason or inner})"
    if isinstance(inner, socket.gaierror):
        return "the host name is not known"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror.lower()
    return str(inner) or type(inner).__name__
