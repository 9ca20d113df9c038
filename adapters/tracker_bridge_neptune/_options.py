"""The config keys: the arguments of `neptune_scale.Run` that make sense for a run fed from a journal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Union

from tracker_bridge.adapter import Options, RunInfo

Mode = Literal["async", "offline", "disabled"]


class NeptuneOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `backends: {neptune: {...}}` takes. Each key means what it means in `neptune_scale.Run`.

    Where a key is not given, Neptune's own variable holds (`NEPTUNE_PROJECT`, `NEPTUNE_API_TOKEN`, `NEPTUNE_MODE`,
    `NEPTUNE_LOG_DIRECTORY`), then what the run says (project, experiment, run id), then the SDK's default.
    Console capture and source tracking of the SDK stay off: they would describe the delivery process.
    """

    project: Union[str, None] = None
    """`workspace/project`. In offline mode a project without a workspace becomes `offline/<project>`, and one with more
    parts (`a/b/c`) `a/b-c`: there is no server whose names it would have to match."""
    api_token: Union[str, None] = None
    mode: Union[Mode, None] = None
    """`async` (a self-hosted server), `offline` (the local database only) or `disabled`."""
    run_id: Union[str, None] = None
    experiment_name: Union[str, None] = None
    fork_run_id: Union[str, None] = None
    fork_step: Union[int, float, None] = None
    log_directory: Union[str, None] = None
    """Where the databases go; default `.neptune` in the working directory."""
    inherit_configs: bool = True


def mode_of(options: NeptuneOptions) -> Mode:
    """The mode. Raises `ValueError` on a wrong `NEPTUNE_MODE` (the SDK would quietly log nothing)."""
    if options.mode is not None:
        return options.mode
    found = os.environ.get("NEPTUNE_MODE") or "async"
    for mode in ("async", "offline", "disabled"):
        if found == mode:
            return mode
    raise ValueError(f"NEPTUNE_MODE is {found!r}; Neptune knows async, offline and disabled")


def project_of(options: NeptuneOptions, run: RunInfo, mode: Mode) -> str:
    """`workspace/project`. Raises `ValueError` naming the key if there is none that Neptune can take."""
    project = options.project or os.environ.get("NEPTUNE_PROJECT") or run.project
    if mode != "async":
        return _local_project(project)
    if project is None or project.count("/") != 1 or not all(project.split("/")):
        raise ValueError(
            f"Neptune wants a project of the form workspace/project, not {project!r}: "
            "set `project` of the neptune backend or NEPTUNE_PROJECT, or use `mode: offline`"
        )
    return project


def _local_project(project: str | None) -> str:
    parts = [part for part in (project or "").split("/") if part]
    workspace = parts.pop(0) if len(parts) > 1 else "offline"
    return f"{workspace}/{'-'.join(parts) or 'tracker_bridge'}"


def token_of(options: NeptuneOptions) -> str:
    """The API token. Raises `ValueError` if there is none."""
    token = options.api_token or os.environ.get("NEPTUNE_API_TOKEN")
    if not token:
        raise ValueError(
            "Neptune has no API token: set NEPTUNE_API_TOKEN to one of your self-hosted server, or use `mode: offline` "
            "(the hosted service closed on 2026-03-05)"
        )
    return token


def run_id_of(options: NeptuneOptions, run: RunInfo) -> str:
    """The run's id in Neptune: the one it had before, the configured one, or the bridge's own (`/` becomes `_`).

    All but the run's first Neptune backend add their name: Neptune would take the data of all for those of one run.
    """
    return run.ids.get("run_id") or options.run_id or run.own_id.replace("/", "_")


def log_directory_of(options: NeptuneOptions, run: RunInfo) -> Path:
    """The absolute folder that holds the databases."""
    # A run directory may have moved to a machine where the script's folder does not exist.
    base = run.cwd if run.cwd.is_dir() else Path.cwd()
    return (base / (options.log_directory or os.environ.get("NEPTUNE_LOG_DIRECTORY") or ".neptune")).absolute()
