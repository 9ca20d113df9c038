"""A run's directory: where its files lie, its manifest (`run.json`) and each backend's state.

The training process writes the manifest when it starts and resumes; afterwards the delivery side does. Every write is
an atomic replacement under a lock file, and has room kept for it on a full disk. This package knows no tracker and no
torch.
"""

from tracker_bridge.rundir._files import (
    FileLock,
    LockBusyError,
    keep_spare,
    read_json,
    replace_file,
    spare_for,
    write_json,
)
from tracker_bridge.rundir._manifest import (
    MANIFEST_FORMAT,
    BackendIdentity,
    Manifest,
    NotARunError,
    Status,
    load_manifest,
    update_manifest,
)
from tracker_bridge.rundir._paths import RunPaths, find_runs
from tracker_bridge.rundir._process import Owner, this_process
from tracker_bridge.rundir._state import BackendState, Health, load_state, save_state

__all__ = [
    "MANIFEST_FORMAT",
    "BackendIdentity",
    "BackendState",
    "FileLock",
    "Health",
    "LockBusyError",
    "Manifest",
    "NotARunError",
    "Owner",
    "RunPaths",
    "Status",
    "find_runs",
    "keep_spare",
    "load_manifest",
    "load_state",
    "read_json",
    "replace_file",
    "save_state",
    "spare_for",
    "this_process",
    "update_manifest",
    "write_json",
]
