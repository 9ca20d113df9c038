"""Copies the calls of `SummaryWriter`s of torch and tensorboardX: each has a stand-in of `compat.tensorboard`.

Of several writers the first has its tags unchanged, each further one has the name of its directory in front of them.
"""

from __future__ import annotations

import weakref
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tracker_bridge.attaching._held import holds
from tracker_bridge.compat._core import Session
from tracker_bridge.compat.tensorboard.writer import SummaryWriter
from tracker_bridge.mirroring._prefixes import Prefixes
from tracker_bridge.mirroring._session import Destination
from tracker_bridge.mirroring._tap import Target

__all__ = ["TensorBoardCopier"]

_HOMES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
_UNTAGGED = ("add_hparams", "add_graph", "add_onnx_graph", "add_openvino_graph", "add_custom_scalars", "add_embedding")


class TensorBoardCopier:
    """See `Copier`."""

    tracker = "tensorboard"

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._known: weakref.WeakKeyDictionary[Any, _StandIn] = weakref.WeakKeyDictionary()
        self._prefixes = Prefixes()

    def targets(self) -> list[Target]:
        """Every `add_*` that the stand-in has, too. Raises `ImportError` if neither kind of writer is there."""
        found: list[Target] = []
        for home in _HOMES:
            if find_spec(home.partition(".")[0]) is None:
                continue
            try:
                writer = import_module(home).SummaryWriter
            except ImportError:  # torch without tensorboard
                continue
            names = [name for name in vars(writer) if name.startswith("add_") and hasattr(SummaryWriter, name)]
            found += [Target(writer, name, name) for name in names]
        if not found:
            raise ImportError("there is no SummaryWriter")
        return found

    def prepare(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Nothing is needed."""

    def copy(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], prepared: Any) -> None:
        """Make the same call on the stand-in."""
        del prepared
        session = self._destination.session()
        writer = args[0]
        if session is None or holds(session.run, id(writer)):
            return
        shadow = self._known.get(writer)
        if shadow is None or shadow._session is not session:
            shadow = self._known[writer] = _StandIn(session, str(getattr(writer, "log_dir", None) or writer.logdir))
        prefix = self._prefixes.of(shadow.log_dir, lambda: Path(shadow.log_dir).name)
        given = list(args[1:])
        if prefix and call not in _UNTAGGED:
            if given:
                given[0] = f"{prefix}{given[0]}"
            else:
                kwargs = {
                    key: f"{prefix}{value}" if key in ("tag", "main_tag") else value for key, value in kwargs.items()
                }
        shadow._hparams = None
        getattr(shadow, call)(*given, **kwargs)


class _StandIn(SummaryWriter):
    """Writes to a run that is not its own, and makes no directory."""

    def __init__(self, session: Session, log_dir: str) -> None:
        self._destination = session
        super().__init__(log_dir, write_to_disk=False)

    def _begin(self, run_id: str | None = None) -> Session:
        del run_id
        return self._destination

    def _end(self, status: str) -> None:
        """The run is not this writer's."""
