"""`mirror` and `unmirror`: which SDKs of this process are mirrored, and into what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from tracker_bridge.errors import UsageError, did_you_mean
from tracker_bridge.mirroring._session import Destination
from tracker_bridge.mirroring._tap import Copier, Tap, Target
from tracker_bridge.run import Run

TRACKERS = ("wandb", "mlflow", "tensorboard", "neptune_scale")

_mirrors: dict[str, Mirror] = {}


class _TargetingCopier(Copier, Protocol):
    def targets(self) -> list[Target]:
        """The methods to wrap. Raises `ImportError` if the SDK is not installed."""


class Mirror:
    """A tracker's SDK while it is mirrored; as a context manager it ends the mirroring."""

    def __init__(self, tracker: str, copier: _TargetingCopier) -> None:
        self.tracker = tracker
        self._taps = [Tap(target, copier) for target in copier.targets()]
        self._rebind({tap.own: tap.wrapper for tap in self._taps})

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Give the SDK its own functions back. A second call does nothing."""
        for tap in reversed(self._taps):
            tap.remove()
        self._rebind({tap.wrapper: tap.own for tap in self._taps})
        self._taps = []
        if _mirrors.get(self.tracker) is self:
            del _mirrors[self.tracker]

    def _rebind(self, functions: dict[Any, Any]) -> None:
        if self.tracker == "wandb" and functions:
            from tracker_bridge.mirroring._wandb import rebind

            rebind(functions)


def mirror(tracker: str, run: Run | None = None) -> Mirror:
    """Copy what the script logs with a tracker's own SDK into a bridge run.

    The SDK's call comes first and is not changed in any way. W&B's rows keep their numbers, MLflow's steps and times
    are its own, TensorBoard's tags keep theirs. A call made while no run is open is not copied.

    Args:
        tracker: `wandb`, `mlflow`, `tensorboard` or `neptune_scale`; the SDK is imported now.
        run: Where to copy to; None: the run that is current when a call is made.

    Raises:
        UsageError: The tracker is unknown, not installed, mirrored already, or stood in for by `tracker-bridge run`.
    """
    if tracker not in TRACKERS:
        hint = did_you_mean(str(tracker), TRACKERS) or "."
        raise UsageError(f"mirror: unknown tracker {tracker!r}{hint} It is one of {', '.join(TRACKERS)}")
    if tracker in _mirrors:
        raise UsageError(f"mirror: {tracker} is mirrored already; call tracker_bridge.unmirror({tracker!r}) first")
    aliases = sys.modules.get("tracker_bridge.launch._aliases")
    if aliases is not None and aliases.active():
        raise UsageError("mirror: under `tracker-bridge run` the trackers' calls go to the bridge only")
    copier = _copier(tracker)(Destination(tracker, run))
    try:
        made = Mirror(tracker, copier)
    except ImportError as error:
        raise UsageError(f"mirror: {tracker} cannot be imported here ({error}); install it first") from error
    _mirrors[tracker] = made
    return made


def unmirror(tracker: str | None = None) -> None:
    """Give a tracker's SDK (None: each one) its very own functions back. Harmless if it is not mirrored."""
    for name in list(_mirrors) if tracker is None else [tracker]:
        if name in _mirrors:
            _mirrors[name].stop()


def _copier(tracker: str) -> Callable[[Destination], _TargetingCopier]:
    if tracker == "wandb":
        from tracker_bridge.mirroring._wandb import WandbCopier

        return WandbCopier
    if tracker == "mlflow":
        from tracker_bridge.mirroring._mlflow import MlflowCopier

        return MlflowCopier
    if tracker == "tensorboard":
        from tracker_bridge.mirroring._tensorboard import TensorBoardCopier

        return TensorBoardCopier
    from tracker_bridge.mirroring._neptune import NeptuneCopier

    return NeptuneCopier
