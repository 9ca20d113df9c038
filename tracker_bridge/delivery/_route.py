"""Routes: which series, at which cadence and grouping, under which names, go to one backend."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Route:
    """One backend's route.

    `include`/`exclude`: globs (or `re:` regular expressions) on series names; a series goes if it matches any include
    (no include: all) and no exclude. `every_n_steps` and `group_by` apply to norm vectors: the first vector in each
    window of n steps goes; the grouping is this route's, else the script's own, else `default_group_by`. `prefix` is
    put before every series name after `rename` (exact name -> name).
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    every_n_steps: int = 1
    group_by: str | None = None
    default_group_by: str = "parameter"
    prefix: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)


class SeriesFilter:
    """Decides about series by name. A pattern also matches a gradient series without its `gradients/` part."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include = tuple(map(_compile, include))
        self._exclude = tuple(map(_compile, exclude))

    def __call__(self, name: str) -> bool:
        """Whether the series called `name` goes."""
        forms = (name, name.partition("/")[2]) if name.startswith("gradients/") else (name,)
        if self._include and not _matches(self._include, forms):
            return False
        return not _matches(self._exclude, forms)


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern))


def _matches(patterns: tuple[re.Pattern[str], ...], forms: tuple[str, ...]) -> bool:
    return any(pattern.match(form) for pattern in patterns for form in forms)
