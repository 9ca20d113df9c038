"""One script that logs to four trackers at once, and what each of them then has of the run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import readback_neptune, readback_wandb, scripts
from tests.contract import test_jsonl, test_mlflow, test_tensorboard
from tracker_bridge.testing import StoredRun

KINDS = ("jsonl", "tensorboard", "mlflow", "wandb", "neptune")


def configure(folder: Path, mlflow_uri: str, **routes: Mapping[str, Any]) -> None:
    """Write `tracker.yaml` with every tracker in `folder`; `routes`: backend -> its route."""
    backends: dict[str, dict[str, Any]] = {
        "jsonl": {},
        "tensorboard": {"log_dir": "runs"},
        "mlflow": {"tracking_uri": mlflow_uri},
        "wandb": {"mode": "offline"},
        "neptune": {"mode": "offline", "log_directory": "neptune"},
    }
    for name, route in routes.items():
        backends[name]["route"] = dict(route)
    config = {"project": "team/everywhere", "experiment": "all", "backends": backends}
    (folder / "tracker.yaml").write_text(json.dumps(config))


def run(folder: Path, text: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script; everything it logged must have been delivered."""
    done = scripts.run(folder, text, *arguments, timeout=110.0, **more)
    assert done.returncode == 0, done.stderr
    return done


def identities(folder: Path, run_id: str) -> dict[str, dict[str, str]]:
    """Backend -> the ids that `run.json` keeps."""
    manifest = json.loads((folder / "tracker_bridge_runs" / run_id / "run.json").read_text())
    return {name: backend["ids"] for name, backend in manifest["backends"].items()}


def dropped(folder: Path, run_id: str, kinds: Sequence[str] = KINDS) -> dict[str, dict[str, int]]:
    """Backend -> its counted drops."""
    backends = folder / "tracker_bridge_runs" / run_id / "backends"
    return {kind: json.loads((backends / kind / "state.json").read_text())["dropped"] for kind in kinds}


def read(folder: Path, run_id: str, mlflow_uri: str, kinds: Sequence[str] = KINDS) -> dict[str, StoredRun]:
    """Tracker -> what it has of the run."""
    ids = identities(folder, run_id)
    return {kind: _READERS[kind](folder, ids[kind], mlflow_uri) for kind in kinds}


def _jsonl(_folder: Path, ids: Mapping[str, str], _uri: str) -> StoredRun:
    return StoredRun(**test_jsonl.stored_lines(Path(ids["path"])))


def _tensorboard(_folder: Path, ids: Mapping[str, str], _uri: str) -> StoredRun:
    return test_tensorboard.TestWithThePythonReader().read_back(ids)


def _mlflow(folder: Path, ids: Mapping[str, str], uri: str) -> StoredRun:
    suite = test_mlflow.TestOnSqlite()
    suite.place, suite.uri = folder, uri
    return suite.read_back(ids)


def _wandb(folder: Path, ids: Mapping[str, str], _uri: str) -> StoredRun:
    return readback_wandb.stored_run(readback_wandb.read_run(folder, ids["run_id"]))


def _neptune(folder: Path, ids: Mapping[str, str], _uri: str) -> StoredRun:
    run = readback_neptune.read_run(folder / "neptune", ids["run_id"])
    return readback_neptune.stored_run(run, readback_neptune.uploads(folder / "neptune", ids["run_id"]))


_READERS = {"jsonl": _jsonl, "tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb, "neptune": _neptune}
