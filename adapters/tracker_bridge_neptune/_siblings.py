"""Which of a run's backends of one kind this one is, from the run's own description on disk. Knows no Neptune."""

from __future__ import annotations

import msgspec

from tracker_bridge.adapter import RunInfo


class _Backend(msgspec.Struct):
    adapter: str = ""


class _Config(msgspec.Struct):
    backends: dict[str, _Backend] = {}


class _Manifest(msgspec.Struct):
    config: _Config = msgspec.field(default_factory=_Config)


def is_first(run: RunInfo) -> bool:
    """Whether no backend of the same kind stands before this one in the configuration that `run.json` keeps.

    It holds for a target that is not in there, and where there is no such file.
    """
    try:
        known = msgspec.json.decode((run.dir / "run.json").read_bytes(), type=_Manifest).config.backends
    except (OSError, msgspec.DecodeError):
        return True
    own = known.get(run.backend)
    return own is None or run.backend == next(name for name, one in known.items() if one.adapter == own.adapter)
