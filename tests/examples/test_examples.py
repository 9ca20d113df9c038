"""The example scripts run as a user runs them, and the trackers themselves hold what was logged."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests import readback_neptune, scripts
from tracker_bridge.config import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = EXAMPLES / "configs"
Series = dict[str, dict[int, float]]
"""Series name -> step -> value."""


def run_example(folder: Path, name: str, *arguments: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """Run an example in `folder` to its end, on one thread and with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", str(EXAMPLES / name), *arguments],
        cwd=folder,
        env=scripts.environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def only_run_id(folder: Path) -> str:
    (run,) = (folder / "tracker_bridge_runs").iterdir()
    return run.name


def in_tensorboard(folder: Path) -> Series:
    """What TensorBoard's own reader finds below `folder/runs`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (directory,) = {file.parent for file in (folder / "runs").rglob("*tfevents*")}
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def in_mlflow(folder: Path) -> Series:
    """What MLflow's client finds in `folder/mlflow.db`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
        (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        assert run.info.status == "FINISHED"
        return {
            name: {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
            for name in run.data.metrics
        }


def in_wandb(folder: Path) -> Series:
    """What W&B's own reader finds in the offline run below `folder/wandb`; its steps are on the axis `global_step`."""
    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    command = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(file)]
    env = scripts.environment(WANDB_MODE="offline", HOME=str(folder))
    output = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    series: Series = {}
    for record in map(json.loads, output.splitlines()):
        row = record["history"]["item"] if record["type"] == "history" else {}
        for name, value in row.items():
            if not name.startswith("_") and name != "global_step":
                series.setdefault(name, {})[row["global_step"]] = value
    return series


def in_neptune(folder: Path) -> Series:
    """What Neptune's local database below `folder/.neptune` holds."""
    stored = readback_neptune.read_run(folder / ".neptune", only_run_id(folder))
    return {
        name: {int(step): value for step, value, _ in points if isinstance(value, float)}
        for name, points in stored.series.items()
    }


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_config_needs_no_account_and_no_server(config: Path, tmp_path: Path) -> None:
    """The config is valid as it stands, with nothing in the environment, and names the trackers that it says."""
    loaded = load_config(config, environ={}, cwd=tmp_path)
    names = [backend.name for backend in loaded.backends]
    assert names == (["tensorboard", "mlflow", "wandb", "neptune"] if config.stem == "all" else [config.stem])


def test_minimal_is_short_and_leaves_its_points_in_tensorboard(tmp_path: Path) -> None:
    """Without a config, the script of under 25 lines logs the loss and each parameter's norm at each step."""
    assert len((EXAMPLES / "minimal.py").read_text().splitlines()) < 25
    run_example(tmp_path, "minimal.py")
    series = in_tensorboard(tmp_path)
    layers = [f"gradients/{index}.{kind}" for index in (0, 2) for kind in ("weight", "bias")]
    for name in ("loss", "gradients/total_norm", *layers):
        assert sorted(series[name]) == list(range(100)), name
    for step, total in series["gradients/total_norm"].items():
        assert total == pytest.approx(math.hypot(*(series[name][step] for name in layers)), rel=1e-5)
    assert series["loss"][99] < 0.5 * series["loss"][0]


@pytest.mark.slow
def test_minimal_logs_the_same_to_four_trackers_at_once(tmp_path: Path) -> None:
    """With `all.yaml` each tracker holds every loss, and the norms that its route lets through."""
    run_example(tmp_path, "minimal.py", str(CONFIGS / "all.yaml"))
    neptune, mlflow, tensorboard, wandb = (read(tmp_path) for read in (in_neptune, in_mlflow, in_tensorboard, in_wandb))
    assert sorted(neptune["loss"]) == list(range(100))
    for name in ("loss", "gradients/total_norm", "gradients/0.weight"):
        assert mlflow[name] == neptune[name]
        assert tensorboard[name] == pytest.approx(neptune[name], rel=1e-6)
    assert wandb["loss"] == neptune["loss"]
    assert wandb["gradients/total_norm"] == {step: neptune["gradients/total_norm"][step] for step in range(0, 100, 5)}


def test_bert_logs_each_parameter_at_each_step(tmp_path: Path) -> None:
    """A few steps leave losses, accuracies and the pre-clip norms of every BERT parameter, whose total agrees."""
    done = run_example(tmp_path, "bert_gradients.py", "--steps", "4")
    series = in_tensorboard(tmp_path)
    layers = [name for name in series if name.startswith(("gradients/bert.", "gradients/classifier."))]
    assert len(layers) == 5 + 4 * 16 + 2 + 2  # embeddings, four layers, pooler, classifier
    for name in ("train/loss", "train/accuracy", "gradients/total_norm", "gradients/clip_coefficient", *layers):
        assert sorted(series[name]) == [0, 1, 2, 3], name
    for step, total in series["gradients/total_norm"].items():
        assert total == pytest.approx(math.hypot(*(series[name][step] for name in layers)), rel=1e-4)
        assert series["gradients/clip_coefficient"][step] == pytest.approx(min(1.0, 1.0 / (total + 1e-6)), rel=1e-4)
    assert sorted(series["eval/accuracy"]) == [3]
    assert "tensorboard: file://" in done.stderr
    assert "pending" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("look at it with: tensorboard --logdir ")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_bert_learns_its_training_pairs(tmp_path: Path) -> None:
    """Seven epochs take the training loss from that of guessing, ln 2, to well below it."""
    run_example(tmp_path, "bert_gradients.py", "--epochs", "7", timeout=380)
    by_step = in_tensorboard(tmp_path)["train/loss"]
    losses = [by_step[step] for step in sorted(by_step)]
    assert statistics.fmean(losses[:20]) == pytest.approx(math.log(2), abs=0.05)
    assert statistics.fmean(losses[-20:]) < 0.55
