"""Copies the calls of `neptune_scale.Run`: each live run has a stand-in of `compat.neptune_scale`."""

from __future__ import annotations

import weakref
from importlib import import_module
from typing import Any

from tracker_bridge.attaching._held import holds
from tracker_bridge.compat._core import Session
from tracker_bridge.compat.neptune_scale._run import Run
from tracker_bridge.compat.neptune_scale.types import File
from tracker_bridge.mirroring._session import Destination
from tracker_bridge.mirroring._tap import Target

__all__ = ["NeptuneCopier"]

_CALLS = (
    "log_metrics",
    "log_string_series",
    "log_histograms",
    "log_files",
    "log_configs",
    "assign_files",
    "add_tags",
    "remove_tags",
    "log",
)
_OF_FILES = ("log_files", "assign_files")


class NeptuneCopier:
    """See `Copier`."""

    tracker = "neptune_scale"

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._known: weakref.WeakKeyDictionary[Any, _StandIn] = weakref.WeakKeyDictionary()

    def targets(self) -> list[Target]:
        """All that logs. What the constructor logs by itself (source code, remotes) is no call of the script."""
        run = import_module("neptune_scale.api.run").Run
        return [*(Target(run, name, name) for name in _CALLS if name in vars(run)), Target(run, "__init__", "")]

    def prepare(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Nothing is needed."""

    def copy(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], prepared: Any) -> None:
        """Make the same call on the stand-in."""
        del prepared
        session = self._destination.session()
        if session is None or holds(session.run, id(args[0])):
            return
        shadow = self._known.get(args[0])
        if shadow is None or shadow._session is not session:
            shadow = self._known[args[0]] = _StandIn(session)
        given = list(args[1:])
        if call in _OF_FILES:
            if given:
                given[0] = _files(given[0])
            else:
                kwargs = {**kwargs, "files": _files(kwargs["files"])}
        getattr(shadow, call)(*given, **kwargs)


class _StandIn(Run):
    """Writes to a run that is not its own."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._closed = False
        self._project = self._experiment_name = None
        self._run_id = session.id


def _files(files: dict[str, Any]) -> dict[str, Any]:
    return {name: File(file.source) if hasattr(file, "source") else file for name, file in files.items()}
