"""The config keys: the arguments of `wandb.init` that make sense for a run fed from a journal."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Literal, Union

from tracker_bridge.adapter import Options, RunInfo

_LONGEST_ID = 64


class WandbOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `backends: {wandb: {...}}` takes. Each key means what it means in `wandb.init`.

    Where a key is not given, W&B's own variable holds (`WANDB_PROJECT`, `WANDB_MODE`, `WANDB_ENTITY`, ...), then what
    the run says (project, experiment as the group, name, tags, run id), then the SDK's default.
    """

    entity: Union[str, None] = None
    project: Union[str, None] = None
    dir: Union[str, None] = None
    """The folder that gets `wandb/`; default the working directory."""
    id: Union[str, None] = None
    name: Union[str, None] = None
    notes: Union[str, None] = None
    group: Union[str, None] = None
    job_type: Union[str, None] = None
    mode: Union[Literal["online", "offline", "disabled"], None] = None
    settings: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    """Further `wandb.Settings`; they override what the adapter sets itself (quiet, no console, no system metrics)."""


def project_of(options: WandbOptions, run: RunInfo) -> str | None:
    """What to pass as `project`; None leaves it to `WANDB_PROJECT` or the SDK."""
    if options.project is not None or os.environ.get("WANDB_PROJECT"):
        return options.project
    # W&B's own rule: none of these characters, at most 128.
    return re.sub(r"[/\\#?%:]", "-", run.project)[:128] if run.project else None


def run_id_of(options: WandbOptions, run: RunInfo) -> str:
    """The run's id in W&B: the one it had before, the configured one, or the bridge's own as far as W&B takes it.

    W&B's service takes an id once at a time, so all but the run's first W&B backend add their name to it.
    """
    wanted = run.ids.get("run_id") or options.id
    if wanted:
        return wanted
    given = os.environ.get("WANDB_RUN_ID")
    if given and run.first_of_kind:
        return given
    whole = f"{given}-{run.backend}" if given else run.own_id
    clean = re.sub(r"[:;,#?/'\s\\]", "-", whole)
    if len(clean) <= _LONGEST_ID:
        return clean
    # What tells ranks and sweeps apart is often at the end.
    mark = hashlib.blake2b(whole.encode(), digest_size=6).hexdigest()
    return f"{clean[: _LONGEST_ID - len(mark) - 1]}-{mark}"


def from_run(option: str | None, variable: str, value: str | None) -> str | None:
    """`option`; else nothing if W&B's own `variable` is set; else what the run says."""
    return option if option is not None or os.environ.get(variable) else value


def folder_of(options: WandbOptions, run: RunInfo) -> str:
    """The absolute folder that gets `wandb/`."""
    base = run.cwd if run.cwd.is_dir() else Path.cwd()
    folder = (base / (options.dir or os.environ.get("WANDB_DIR") or "")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
