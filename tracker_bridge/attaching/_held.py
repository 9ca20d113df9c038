"""Which live objects of the script are backends of which runs, so that mirroring does not send them their own calls."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracker_bridge.run import Run

_held: weakref.WeakKeyDictionary[Run, frozenset[Any]] = weakref.WeakKeyDictionary()


def hold(run: Run, identities: Iterable[Any]) -> None:
    """Say that `run` delivers to these objects. An identity is `id()` of the object, or a tracker's own run id."""
    _held[run] = frozenset(identities)


def holds(run: Run, identity: Any) -> bool:
    """Whether `run` delivers to that object."""
    return identity in _held.get(run, frozenset())
