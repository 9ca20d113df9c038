"""Unmodified scripts, once with their tracker's own SDK and once under the launcher without it: all arrives everywhere.

The truth is what the SDK stored. The launched script must print the same, end the same, and each of the four backends
must hold every value of it at its step, and its tags, params, texts, files and status.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests import scripts
from tests.compat import readback
from tests.compat.readback import Series
from tests.compat.said import assert_said
from tests.servers import MLFLOW_QUIET, mlflow_template
from tracker_bridge.rundir import find_runs, load_manifest, load_state

__all__ = ["mlflow_template"]

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "scripts").glob("*.py"))
BLOCKED = {
    "neptune": "neptune_scale,neptune_api",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "tensorboard": "tensorboard,tensorboardX",
}
BACKENDS = """
project: bridged
backends:
  tensorboard: {log_dir: tensorboard}
  mlflow: {tracking_uri: "sqlite:///bridged.db"}
  wandb: {mode: offline, dir: wandb_logs}
  neptune: {mode: offline, project: team/bridged, log_directory: neptune_logs}
delivery: {close_timeout: 90}
"""
AXES = {"val/*": "epoch"}
"""What `wandb_project.py` says with `define_metric`."""
MEDIA = ("image/*", "predictions/*")
"""Of `wandb_tutorial.py`: what W&B notes of a picture and a table are no values that the script logs."""
OURS = ("gradients/*", "summary/*", "*/non_finite", "global_step", *MEDIA)
"""Series that the bridge adds."""


@dataclass(frozen=True)
class Limit:
    """What a tracker cannot hold: `single`: more than float32; `whole_steps`: fractional steps (dropped, counted)."""

    single: bool = False
    whole_steps: bool = True


LIMITS = {
    "neptune": Limit(whole_steps=False),
    "wandb": Limit(whole_steps=False),
    "mlflow": Limit(),
    "tensorboard": Limit(single=True),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("name", NAMES)
def test_every_value_reaches_every_backend(name: str, tmp_path: Path, mlflow_template: Path) -> None:
    """All that the script logs is in all four trackers, and its output and exit status are those with the SDK."""
    pytest.importorskip("tensorboardX")
    kind = name.partition("_")[0]
    native, bridged = tmp_path / "native", tmp_path / "bridged"
    expected = _run(native, name, [], mlflow_template)
    assert expected.returncode == 0, expected.stderr
    bridged.mkdir()
    (bridged / "tracker.yaml").write_text(BACKENDS)
    shutil.copyfile(mlflow_template, bridged / "bridged.db")
    launcher = ["-m", "tracker_bridge.launch", "--config", "tracker.yaml"]
    done = _run(bridged, name, launcher, mlflow_template, BLOCKED_SDK=BLOCKED[kind])
    assert done.returncode == 0, done.stderr
    assert _plain(done.stdout) == _plain(expected.stdout)
    assert f"coverage of {'neptune_scale' if kind == 'neptune' else kind} calls" in done.stderr

    truth = _truth(kind, name, native)
    assert sum(len(points) for run in truth for points in run.values()) >= 5
    manifests = [load_manifest(paths) for paths in find_runs(bridged / "tracker_bridge_runs")]
    failing = 1 if name == "mlflow_project" else 0
    assert sorted(manifest.status for manifest in manifests) == ["failed"] * failing + ["finished"] * (
        len(manifests) - failing
    )
    assert len(manifests) == len(truth)
    states = [load_state(paths, backend) for paths in find_runs(bridged / "tracker_bridge_runs") for backend in LIMITS]
    lost = sum(state.dropped.get("fractional_step", 0) for state in states)
    fractions = sum(not step.is_integer() for run in truth for points in run.values() for step, _ in points)
    assert lost == fractions * sum(limit.whole_steps for limit in LIMITS.values())
    assert all(set(state.dropped) <= {"fractional_step"} for state in states)
    for backend, runs in _stored(bridged).items():
        assert len(runs) == len(truth), backend
        _assert_same(backend, truth, runs, single=LIMITS[backend].single or kind == "tensorboard")
    assert_said(name, bridged, done.stdout)


def _run(
    folder: Path, name: str, launcher: list[str], mlflow_template: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    script = folder / f"{name}.py"
    shutil.copyfile(HERE / "scripts" / script.name, script)
    shutil.copyfile(mlflow_template, folder / "own.db")
    own = {} if launcher else {"NEPTUNE_MODE": "offline", "WANDB_MODE": "offline", "NEPTUNE_PROJECT": "team/native"}
    environment = scripts.environment(**MLFLOW_QUIET, **own, **more)
    environment["MLFLOW_TRACKING_URI"] = "" if launcher else "sqlite:///own.db"
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "blocked"), environment["PYTHONPATH"]])
    environment["MPLBACKEND"] = "agg"
    environment = {key: value for key, value in environment.items() if value != ""}
    command = [sys.executable, *launcher, script.name]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def _plain(output: str) -> str:
    """What was printed, without the memory addresses and the random names of runs."""
    return re.sub(r"0x[0-9a-f]+", "0x", output)


def _truth(kind: str, name: str, folder: Path) -> list[Series]:
    if kind == "neptune":
        return list(readback.neptune_runs(folder / ".neptune").values())
    if kind == "wandb":
        return list(readback.wandb_runs(folder, _axis if name == "wandb_project" else lambda *_: None).values())
    if kind == "mlflow":
        return list(readback.mlflow_runs(f"sqlite:///{folder}/own.db").values())
    return list(readback.as_one_writer(readback.tensorboard_runs(folder / "runs")).values())


def _axis(name: str, row: Mapping[str, Any]) -> float | None:
    for pattern, axis in AXES.items():
        if fnmatchcase(name, pattern):
            return float(row[axis])
    return None


def _stored(folder: Path) -> dict[str, list[Series]]:
    return {
        "neptune": list(readback.neptune_runs(folder / "neptune_logs").values()),
        "wandb": list(readback.wandb_runs(folder / "wandb_logs", lambda _, row: row.get("global_step")).values()),
        "mlflow": list(readback.mlflow_runs(f"sqlite:///{folder}/bridged.db").values()),
        "tensorboard": list(readback.tensorboard_runs(folder / "tensorboard").values()),
    }


def _assert_same(backend: str, truth: list[Series], runs: list[Series], *, single: bool) -> None:
    """Each run of the script is one of the backend's, value by value; nothing was added but what the bridge adds."""
    left = [_theirs(run) for run in runs]
    for run in truth:
        wanted = _theirs(run)
        if LIMITS[backend].whole_steps:
            wanted = {name: [point for point in points if point[0].is_integer()] for name, points in wanted.items()}
        if single:
            wanted = readback.single(wanted)
            left = [readback.single(one) for one in left]
        if wanted not in left:
            nearest = max(left, key=lambda one: len(set(one) & set(wanted)), default={})
            assert nearest == wanted, backend
        left.remove(wanted)


def _theirs(run: Series) -> Series:
    return {name: points for name, points in run.items() if not any(fnmatchcase(name, own) for own in OURS)}
