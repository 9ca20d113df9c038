"""Run as a script: deliver one run's journal in small chunks, so that a kill falls between many commits.

python -m tests.contract.killed_delivery RUN_DIR wandb|neptune OPTIONS_JSON
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from tracker_bridge.delivery import deliver_once


def make(kind: str, options: dict[str, Any]) -> Any:
    """The adapter, with limits that make a chunk of the journal 64 KiB."""
    if kind == "wandb":
        from tracker_bridge_wandb import WandbAdapter as Kind
    else:
        from tracker_bridge_neptune import NeptuneAdapter as Kind  # type: ignore[assignment]
    adapter = Kind(msgspec.convert(options, Kind.options_type))
    adapter.capabilities = dataclasses.replace(Kind.capabilities, max_points=700)  # type: ignore[misc]
    return adapter


if __name__ == "__main__":
    run_dir, kind, options = sys.argv[1:4]
    state = deliver_once(Path(run_dir), backend="backend", adapter=make(kind, json.loads(options)), timeout=60.0)
    print(f"{state.health} {state.last_error}", flush=True)
