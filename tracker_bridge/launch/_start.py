"""What the bootstrap does in the script's process before its first line, with the standard library only."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracker_bridge.launch._aliases import after_import, install


def start(told: dict[str, Any]) -> None:
    """Alias the names, here and in processes that `multiprocessing` spawns, and watch gradients if that is asked."""
    install(told["trackers"])
    after_import("multiprocessing.spawn", lambda spawn: _carry_over(spawn, told))
    if told["gradients"]:
        after_import("torch.optim.optimizer", lambda _: _watch_gradients())


def _watch_gradients() -> None:
    from tracker_bridge.launch._gradients import watch_all

    watch_all()


class _Name(str):
    """A process's name that starts the aliases where it is unpickled: in a spawned child, before its imports."""

    __slots__ = ("told",)
    told: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (str(self), self.told)


def _arrive(name: str, told: dict[str, Any]) -> str:
    start(told)
    return name


def _carry_over(spawn: ModuleType, told: dict[str, Any]) -> None:
    original = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        carrier = _Name(name)
        carrier.told = told
        data["name"] = carrier
        return data

    vars(spawn)["get_preparation_data"] = get_preparation_data
