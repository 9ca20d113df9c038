"""The errors that the bridge raises on purpose. Each message names the thing that is wrong and the remedy.

Faults of trackers, networks and disks are never raised into a script; they are counted and reported instead. What is
here is raised for misuse only: a wrong configuration, a wrong call, an adapter that cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["AdapterLoadError", "BridgeError", "ConfigError", "UsageError", "did_you_mean"]


class BridgeError(Exception):
    """Base of the errors of this library."""


class UsageError(BridgeError, ValueError):
    """A call or a command that cannot mean anything."""


class AdapterLoadError(BridgeError):
    """An adapter that is not installed, or whose entry point fails to load."""


class ConfigError(BridgeError, ValueError):
    """A configuration that cannot be used.

    Attributes:
        problem: What is wrong and what would be right, without its place.
        origin: Where the value came from: a file (`tracker.yaml`, `tracker.yaml:3:7`), an environment variable, `the
            arguments`; None if the error belongs to no source.
        key: The path of the key, such as `backends.wandb.mode`; None if the error belongs to the whole source.
    """

    def __init__(self, problem: str, *, origin: str | None = None, key: str | None = None) -> None:
        super().__init__(": ".join(part for part in (origin, key, problem) if part))
        self.problem = problem
        self.origin = origin
        self.key = key


def did_you_mean(word: str, known: Iterable[str], *, at_least: float = 0.6) -> str:
    """What an error about an unknown word ends with, naming the nearest known one; "" if none is near.

    `at_least`: how near, from 0 to 1 (`difflib.get_close_matches`).
    """
    near = get_close_matches(word, list(known), n=1, cutoff=at_least)
    return f"; did you mean {near[0]!r}?" if near else ""
