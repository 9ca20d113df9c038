"""What the trackers show about where a run came from: the training script, not the process that delivers."""

from __future__ import annotations

import contextlib
import getpass
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tracker_bridge.config import HIDDEN, is_secret_key


def provenance(scrub: Callable[[str], str]) -> dict[str, Any]:
    """script, arguments, cwd, git_commit, git_branch, git_remote (without credentials), host, user, python, platform.

    Read from files only: no git process is started. What cannot be found is left out.
    """
    found: dict[str, Any] = {
        "script": sys.argv[0] if sys.argv else "",
        "arguments": [scrub(argument) for argument in _without_secrets(sys.argv[1:])],
        "cwd": str(Path.cwd()),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    with contextlib.suppress(Exception):
        found["user"] = getpass.getuser()
    with contextlib.suppress(OSError, ValueError, UnicodeError):
        found |= _git(Path.cwd())
    return found


def _without_secrets(arguments: list[str]) -> list[str]:
    """`--password X` and `--password=X` without X, for every option that is named like a secret."""
    shown: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if equals and name.startswith("-") and is_secret_key(name.lstrip("-")):
            shown.append(f"{name}={HIDDEN}")
        elif shown and shown[-1].startswith("-") and is_secret_key(shown[-1].lstrip("-")):
            shown.append(HIDDEN)
        else:
            shown.append(argument)
    return shown


def _git(start: Path) -> dict[str, str]:
    for folder in (start, *start.parents):
        marker = folder / ".git"
        if marker.is_dir():
            return _git_facts(marker, marker)
        if marker.is_file():
            own = folder / marker.read_text().partition("gitdir:")[2].strip()
            common = own / "commondir"
            return _git_facts(own, own / common.read_text().strip() if common.is_file() else own)
    return {}


def _git_facts(own: Path, common: Path) -> dict[str, str]:
    facts: dict[str, str] = {}
    head = (own / "HEAD").read_text().strip()
    reference = head.partition("ref:")[2].strip()
    if reference:
        facts["git_branch"] = reference.removeprefix("refs/heads/")
        commit = _resolve(own, common, reference)
        if commit:
            facts["git_commit"] = commit
    else:
        facts["git_commit"] = head
    for line in (common / "config").read_text().splitlines():
        key, _, value = line.strip().partition("=")
        if key.strip() == "url" and "git_remote" not in facts:
            facts["git_remote"] = _without_credentials(value.strip())
    return facts


def _resolve(own: Path, common: Path, reference: str) -> str | None:
    for base in (own, common):
        path = base / reference
        if path.is_file():
            return path.read_text().strip()
    packed = common / "packed-refs"
    if packed.is_file():
        for line in packed.read_text().splitlines():
            commit, _, name = line.partition(" ")
            if name == reference:
                return commit
    return None


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme and "@" in parts.netloc:
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return url
