"""The command's own part: checks the configuration, then becomes the script's Python."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tracker_bridge.errors import UsageError
from tracker_bridge.launch._aliases import TRACKERS

BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
VARIABLE = "_TRACKER_BRIDGE_LAUNCH"
"""Tells the bootstrap what to do; it is gone before the script's first line."""


def launch(
    arguments: Sequence[str], *, config: str | os.PathLike[str] | None = None, only: Iterable[str] = ()
) -> NoReturn:
    """Replace this process by `python <arguments>` with the trackers' names aliased.

    `arguments` as Python's own command line: `script.py ...`, `-m module ...`, `-c code ...` or `-` (standard input).
    `config` is the configuration file for every run of the script. `only`: the trackers to stand in for (default: all).
    Raises `UsageError` and `ConfigError`.
    """
    command, environ = prepare(arguments, config=config, only=only, environ=os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environ)  # noqa: S606 - no shell is wanted


def prepare(
    arguments: Sequence[str],
    *,
    config: str | os.PathLike[str] | None,
    only: Iterable[str],
    environ: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of the script's Python."""
    from tracker_bridge.config import load_config

    if not arguments:
        raise UsageError("name a script: tracker-bridge run script.py, or -m module, -c code, - for standard input")
    trackers = _chosen(only)
    new = dict(environ)
    if config is not None:
        new["TRACKER_BRIDGE_CONFIG"] = str(Path(config).absolute())
    settings = load_config(environ=new)
    told = {
        "trackers": trackers,
        "gradients": settings.gradients is not None,
        "pythonpath": environ.get("PYTHONPATH"),
    }
    new[VARIABLE] = json.dumps(told)
    new["PYTHONPATH"] = os.pathsep.join(part for part in (str(BOOTSTRAP), environ.get("PYTHONPATH")) if part)
    return [_python(), *_flags(), *arguments], new


def _chosen(only: Iterable[str]) -> list[str]:
    chosen = list(only) or list(TRACKERS)
    for name in chosen:
        if name not in TRACKERS:
            raise UsageError(f"--only: there is no stand-in for {name!r}; there are {', '.join(TRACKERS)}")
    return chosen


def _python() -> str:
    if not sys.executable:
        raise UsageError("this Python does not know its own executable, so no script can be started with it")
    return sys.executable


def _flags() -> list[str]:
    """This interpreter's own flags (`python -W error -m tracker_bridge run ...`)."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise UsageError("tracker-bridge run prepares Python through PYTHONPATH; start it without -E, -I and -S")
    flags: list[str] = []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in ("-", "--") or not word.startswith("-"):
            break
        if word.startswith("--"):
            flags.append(word)
            if word == "--check-hash-based-pycs":
                flags.append(next(words))
            continue
        end = next((index for index, letter in enumerate(word) if letter in "mcWX"), len(word))
        if end == len(word):
            flags.append(word)
        elif word[end] in "WX":
            # The argument is the rest of the word, or the next one.
            flags += [word] if end + 1 < len(word) else [word, next(words)]
        else:
            flags += [word[:end]] if end > 1 else []
            break
    return flags
