"""What each logging call reads and changes of its run.

`_native` holds the same class with `log_metrics` of plain numbers in C. Without it every call takes the way in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracker_bridge._extensions import WANTED
from tracker_bridge.records import Step

LOGGED_AND_DUE = 2


class PythonPace:
    """Which step was the last, and when a call looks after delivery.

    `looked`, `next_look`: when one last did and when one will again, in nanoseconds. Both, because the clock may be
    set back.
    """

    __slots__ = ("last_step", "looked", "next_look")

    metrics: Callable[[Any, Any], int] | None = None
    """The shortcut, `metrics(data, step)`. 0: nothing was done; 1: it is logged; `LOGGED_AND_DUE`: it is, and it is
    time to look after delivery."""

    def __init__(self, last_step: Step, looked: int, next_look: int, tail: object) -> None:  # noqa: ARG002
        self.last_step = last_step
        self.looked = looked
        self.next_look = next_look


if TYPE_CHECKING or not WANTED:
    Pace = PythonPace
else:
    try:
        from tracker_bridge.run._native import Pace
    except ImportError:  # no compiler when it was installed
        Pace = PythonPace
