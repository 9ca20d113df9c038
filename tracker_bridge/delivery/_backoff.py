"""How long to wait before the next try."""

from __future__ import annotations

import random

FIRST, LARGEST = 0.5, 60.0
"""Seconds."""

_random = random.Random()  # noqa: S311 - spreads retries; an own generator leaves the script's seed alone


def pause(attempt: int, after: float | None) -> float:
    """Seconds to wait after failed try number `attempt` (from 1): exponential with jitter, or what the server asked.

    Half of the wait is random, so that many runs that lost one server do not come back at the same moment.
    """
    if after is not None:
        return min(max(after, 0.0), 600.0)
    ceiling = min(LARGEST, FIRST * 2.0 ** min(attempt - 1, 20))
    return ceiling * (0.5 + 0.5 * _random.random())
