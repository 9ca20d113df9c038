"""Names of trackers' modules that mean modules of `tracker_bridge.compat` in this process, whatever is imported when.

Standard library only: it runs before the script. A module of a tracker that has no stand-in is an `ImportError` that
says so, never the real SDK.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    # The real ones bring half of the standard library into the script's process.
    Loader = MetaPathFinder = object

TRACKERS: dict[str, dict[str, str]] = {
    "neptune_scale": {"neptune_scale": "tracker_bridge.compat.neptune_scale"},
    "wandb": {"wandb": "tracker_bridge.compat.wandb"},
    "mlflow": {"mlflow": "tracker_bridge.compat.mlflow"},
    "tensorboard": {
        "torch.utils.tensorboard": "tracker_bridge.compat.tensorboard",
        "tensorboardX": "tracker_bridge.compat.tensorboard",
    },
}
"""Tracker -> name -> the module that the name means."""


class AliasFinder(MetaPathFinder):
    """Answers for the aliased names and everything below them."""

    def __init__(self, trackers: Iterable[str]) -> None:
        self._aliases = {name: home for tracker in trackers for name, home in TRACKERS[tracker].items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a stand-in; None for a name that is not aliased."""
        del path, target
        for name, home in self._aliases.items():
            if fullname == name:
                return ModuleSpec(fullname, _AliasLoader(home), origin=_real_origin(fullname))
            if fullname.startswith(f"{name}."):
                return self._inner_spec(fullname, name, home)
        return None

    def forget_loaded(self) -> None:
        """Drop what somebody imported already, so that later imports meet the stand-ins."""
        for loaded in list(sys.modules):
            if any(loaded == name or loaded.startswith(f"{name}.") for name in self._aliases):
                del sys.modules[loaded]
        parent = sys.modules.get("torch.utils")
        if parent is not None and "torch.utils.tensorboard" in self._aliases:
            vars(parent).pop("tensorboard", None)

    def _inner_spec(self, fullname: str, name: str, home: str) -> ModuleSpec:
        inner = fullname[len(name) + 1 :]
        if not any(part.startswith("_") for part in inner.split(".")):
            place = f"{home}.{inner}"
            if _exists(place):
                return ModuleSpec(fullname, _AliasLoader(place), origin=place)
            made = getattr(sys.modules.get(home), inner, None) if "." not in inner else None
            if isinstance(made, ModuleType):
                return ModuleSpec(fullname, _AliasLoader(made), origin=place)
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: this process runs under `tracker-bridge run`, where {name} is a stand-in "
            f"with the logging API only. If the script needs the real one, leave it out with --only",
            name=fullname,
        )


class _AliasLoader(Loader):
    """Loads nothing: the module is one that exists under another name."""

    def __init__(self, target: str | ModuleType) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The stand-in itself, so that both names are one module."""
        del spec
        return importlib.import_module(self._target) if isinstance(self._target, str) else self._target

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has been executed under its own name."""


class AfterImport(MetaPathFinder):
    """Calls `action(module)` once, right after the module `name` was imported."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name, self._action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The real spec of `name`, with the action behind its loader; None for other names."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenLoader(spec.loader, self._action)
                return spec
        return None


class _ThenLoader(Loader):
    def __init__(self, inner: Loader, action: Callable[[ModuleType], None]) -> None:
        self._inner, self._action = inner, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._action(module)


_finder: AliasFinder | None = None


def install(trackers: Iterable[str]) -> None:
    """Alias the names of `trackers` in this process."""
    global _finder
    if _finder is None:
        _finder = AliasFinder(trackers)
        sys.meta_path.insert(0, _finder)
        _finder.forget_loaded()


def active() -> bool:
    """Whether names are aliased in this process."""
    return _finder is not None


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with the module `name`: now if it is loaded, else when it is imported."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        action(loaded)
    else:
        sys.meta_path.insert(0, AfterImport(name, action))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _real_origin(name: str) -> str | None:
    """Where the real module lies; None if it is not installed. Who asks only whether it is there gets the truth."""
    if "." in name:
        return None
    for finder in sys.meta_path:
        if not isinstance(finder, AliasFinder):
            try:
                spec = finder.find_spec(name, None)
            except ImportError:
                return None
            if spec is not None:
                return spec.origin
    return None
