"""Wrapping a method politely: its own call first, then a copy of the call, whose faults are contained.

Only the outermost call of a thread is copied, so what an SDK calls inside itself is not copied again; nor is what the
bridge's own delivery threads log. This module knows no tracker.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tracker_bridge.compat._coverage import say_once

_DELIVERY = "tracker_bridge-"
_ABSENT = object()


class _Inside(threading.local):
    yes = False


_inside = _Inside()


class Copier(Protocol):
    """Translates calls of one tracker's SDK. Whatever it raises is reported once and goes no further."""

    tracker: str

    def prepare(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What must be known from before the SDK's own call; handed to `copy`."""

    def copy(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], prepared: Any) -> None:
        """The SDK's own call has returned: record it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A method `name` of a class; `call` is what a copier knows it by (empty: it is not copied, nor what it calls)."""

    owner: Any
    name: str
    call: str


class Tap:
    """One wrapped method, until `remove`."""

    def __init__(self, target: Target, copier: Copier) -> None:
        self._target = target
        self._own = vars(target.owner).get(target.name, _ABSENT)
        self._on = True
        self._wrapper = _wrapped(getattr(target.owner, target.name), target.call, copier, lambda: self._on)
        setattr(target.owner, target.name, self._wrapper)

    @property
    def wrapper(self) -> Any:
        """What stands in the class now."""
        return self._wrapper

    @property
    def own(self) -> Any:
        """What stood there before."""
        return self._own

    def remove(self) -> None:
        """Put the very same object back. If somebody has wrapped it since, theirs stays and ours passes calls on."""
        self._on = False
        if vars(self._target.owner).get(self._target.name) is not self._wrapper:
            return
        if self._own is _ABSENT:
            delattr(self._target.owner, self._target.name)
        else:
            setattr(self._target.owner, self._target.name, self._own)


def _wrapped(own: Callable[..., Any], call: str, copier: Copier, on: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(*args: Any, **kwargs: Any) -> Any:
        if _inside.yes or not on() or threading.current_thread().name.startswith(_DELIVERY):
            return own(*args, **kwargs)
        _inside.yes = True
        try:
            prepared = _guarded(copier, call, lambda: copier.prepare(call, args, kwargs)) if call else None
            result = own(*args, **kwargs)
            if call:
                _guarded(copier, call, lambda: copier.copy(call, args, kwargs, prepared))
            return result
        finally:
            _inside.yes = False

    return method


def _guarded(copier: Copier, call: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        say_once(f"mirror of {copier.tracker}: a call of {call} was not copied: {type(error).__name__}: {error}")
        return None
