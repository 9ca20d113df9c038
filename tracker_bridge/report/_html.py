"""The report as one HTML file: template, style, script, plotting library and data, with nothing from a network.

Everything that a journal holds is data here: it lies in a JSON block in which `<`, `>` and `&` are escaped, and the
script puts it on the page as text. The content policy allows the two scripts of this package, by hash, and no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from tracker_bridge.report._payload import payload
from tracker_bridge.report._story import Story

_ASSETS = "tracker_bridge.report"


def render_report(stories: Sequence[Story]) -> str:
    """The HTML of a report of one run or of several beside each other. Raises `ValueError` if there is none."""
    if not stories:
        raise ValueError("a report needs at least one run")
    library, script = _asset("plotly-cartesian.min.js"), _asset("report.js")
    title = stories[0].title if len(stories) == 1 else f"{len(stories)} runs"
    parts = {
        "policy": _policy(library, script),
        "title": escape(f"{title} - gradient report"),
        "style": _asset("report.css"),
        "data": _json(stories),
        "library": library,
        "script": script,
    }
    page = _asset("report.html")
    # One pass over the template: what was put in is never looked at again.
    pieces = []
    while page:
        before, mark, after = page.partition("{{")
        pieces.append(before)
        name, _, page = after.partition("}}")
        pieces.append(parts[name] if mark else "")
    return "".join(pieces)


def write_report(stories: Sequence[Story], path: str | os.PathLike[str]) -> Path:
    """Write the report to `path`, whole or not at all; returns the path. Raises `OSError`, `ValueError`."""
    target = Path(path)
    text = render_report(stories)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    # Plotly sets styles from its script, and draws a heatmap as a data: image.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(stories: Sequence[Story]) -> str:
    text = json.dumps(payload(stories), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    # An HTML parser reads \r\n as \n before the policy's hash is computed.
    return (files(_ASSETS) / "_assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")
