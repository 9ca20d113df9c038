"""Copies the calls of `wandb`: each live run has a stand-in of `compat.wandb`, on which the same call is made."""

from __future__ import annotations

import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

from tracker_bridge.attaching._held import holds
from tracker_bridge.compat._core import Session
from tracker_bridge.compat.wandb import _run as stand_in
from tracker_bridge.compat.wandb import data_types
from tracker_bridge.compat.wandb._artifact import Artifact
from tracker_bridge.mirroring._session import Destination
from tracker_bridge.mirroring._tap import Target

__all__ = ["WandbCopier", "rebind"]

_RUN_CALLS = ("define_metric", "watch", "unwatch", "save", "log_artifact", "log_model", "alert")
_OF_PATH = ("Image", "Audio", "Video", "Html", "Object3D", "Molecule")


class WandbCopier:
    """See `Copier`."""

    tracker = "wandb"

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._known: weakref.WeakKeyDictionary[Any, stand_in.Run] = weakref.WeakKeyDictionary()

    def targets(self) -> list[Target]:
        """`_log` is behind `run.log` and `wandb.log`, also where a script has kept one of these."""
        run = import_module("wandb.sdk.wandb_run").Run
        config = import_module("wandb.sdk.wandb_config").Config
        summary = import_module("wandb.sdk.wandb_summary").Summary
        calls = [Target(run, "_log" if "_log" in vars(run) else "log", "log")]
        calls += [Target(run, name, name) for name in _RUN_CALLS if name in vars(run)]
        calls += [Target(config, name, "config") for name in ("__setitem__", "__setattr__", "update", "setdefaults")]
        calls += [Target(summary.__mro__[1], "update", "summary")]
        # What it logs by itself while it ends is no call of the script; a run that logged nothing has a config, too.
        return [*calls, Target(run, "_finish", "finish")]

    def prepare(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The stand-in of the run, which begins to count rows where the run is before this call."""
        del kwargs
        run = self._run_of(call, args[0])
        return None if run is None else self._stand_in(run)

    def copy(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], prepared: Any) -> None:
        """Make the same call on the stand-in."""
        shadow: stand_in.Run | None = prepared
        if shadow is None or call == "finish":
            return
        if call == "config":
            shadow.config.update(_changed(args[0], shadow.config), allow_val_change=True)
        elif call == "summary":
            shadow.summary.update({name: _converted(value) for name, value in dict(args[1]).items()})
        elif call == "log":
            data = args[1] if len(args) > 1 else kwargs["data"]
            rest = {key: value for key, value in kwargs.items() if key != "data"}
            shadow.log({name: _converted(value) for name, value in data.items()}, *args[2:], **rest)
        elif call in ("log_artifact", "log_model"):
            getattr(shadow, call)(_artifact(args[1]) if len(args) > 1 else None, *args[2:], **kwargs)
        else:
            getattr(shadow, call)(*args[1:], **kwargs)

    def _run_of(self, call: str, owner: Any) -> Any:
        if call not in ("config", "summary"):
            return owner
        for run in [import_module("wandb").run, *self._known]:
            if run is not None and any(owner is part for part in (run._config, run.summary)):
                return run
        return None

    def _stand_in(self, run: Any) -> stand_in.Run | None:
        session = self._destination.session()
        if session is None or holds(session.run, id(run)):
            return None
        known = self._known.get(run)
        if known is None or known._session is not session:
            known = self._known[run] = _begun(run, session)
        return known


def _begun(run: Any, session: Session) -> stand_in.Run:
    shadow = stand_in.Run(session, {"id": run.id, "name": run.name, "tags": run.tags})
    shadow._step = int(getattr(run, "_local_step", None) or getattr(run, "_step", None) or run.starting_step or 0)
    if run.tags:
        session.run.add_tags(run.tags)
    shadow.config.update(_changed(run._config, shadow.config), allow_val_change=True)
    return shadow


def _changed(config: Any, known: Any) -> dict[str, Any]:
    """Compared as text: an array has no truth value."""
    return {
        key: value
        for key, value in config.items()
        if key != "_wandb" and (key not in known or repr(known[key]) != repr(value))
    }


def _converted(value: Any) -> Any:
    """W&B's own media as the stand-in's."""
    if isinstance(value, dict):
        return {key: _converted(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_converted(inner) for inner in value]
    kind = next((kind for kind in type(value).__mro__ if kind.__module__.startswith("wandb.")), None)
    if kind is None:
        return value
    name = type(value).__name__
    if name == "Histogram":
        return data_types.Histogram(np_histogram=(value.histogram, value.bins))
    if name == "Table":
        return data_types.Table(columns=value.columns, data=value.data)
    if name in _OF_PATH and getattr(value, "_path", None):
        return getattr(data_types, name)(value._path)
    if hasattr(value, "table"):
        return data_types.Chart(_converted(value.table), name)
    return data_types.Chart(None, name)


def _artifact(value: Any) -> Any:
    manifest = getattr(value, "manifest", None)
    if manifest is None:
        return value
    copied = Artifact(str(value.name).partition(":")[0], value.type, metadata=dict(value.metadata or {}))
    for inner, entry in manifest.entries.items():
        if entry.local_path is not None and Path(entry.local_path).is_file():
            copied.add_file(entry.local_path, name=inner)
        elif entry.ref is not None:
            copied.add_reference(str(entry.ref))
    return copied


def rebind(before: dict[Any, Any]) -> None:
    """Let the functions that `wandb.init` has put into the module (`wandb.save`, ...) lead to other methods.

    `before`: function -> the function that is to stand in its place.
    """
    module = import_module("wandb")
    run = module.run
    if run is None:
        return
    for name in ("log", *_RUN_CALLS):
        bound: Any = vars(module).get(name)
        function = getattr(bound, "__func__", None)
        if function is not None and bound.__self__ is run and function in before:
            setattr(module, name, before[function].__get__(run))
