"""Jobs of several ranks: one run by default, one for each rank where the configuration says so, in every tracker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import readback_neptune, readback_wandb, scripts
from tests.contract import everywhere
from tests.servers import mlflow_sqlite, mlflow_template

__all__ = ["mlflow_sqlite", "mlflow_template"]

pytest.importorskip("wandb")
pytest.importorskip("neptune_scale")
MlflowClient = pytest.importorskip("mlflow").MlflowClient

RANK = """
import os
import tracker_bridge as bridge

with bridge.init("tracker.yaml", run_id="job", name="a job") as run:
    for step in range(20):
        run.log_metrics({"loss": 100 * int(os.environ["RANK"]) + step}, step=step)
print(run.id)
"""


def test_each_rank_has_a_run_of_its_own(tmp_path: Path, mlflow_sqlite: str) -> None:
    """With `ranks: all`, two ranks at once are two runs in each tracker, with the rank in id, name and tags."""
    everywhere.configure(tmp_path, mlflow_sqlite)
    ranks = [
        scripts.start(tmp_path, RANK, RANK=str(rank), WORLD_SIZE="2", TRACKER_BRIDGE_RANKS="all") for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=100)
        assert (process.returncode, out) == (0, f"job-rank{rank}\n"), err
    for rank in range(2):
        for kind, run in everywhere.read(tmp_path, f"job-rank{rank}", mlflow_sqlite).items():
            got = [(point.step, point.value) for point in run.metrics["loss"]]
            assert got == [(step, 100 * rank + step) for step in range(20)], kind
            assert run.tags["rank"] == str(rank), kind
            assert run.runs == 1, kind
        manifest = json.loads((tmp_path / "tracker_bridge_runs" / f"job-rank{rank}" / "run.json").read_text())
        assert manifest["name"] == f"a job-rank{rank}"


def test_the_runs_of_one_experiment_stand_together(tmp_path: Path, mlflow_sqlite: str) -> None:
    """Runs of one `experiment` are a group in W&B, an experiment in MLflow and Neptune, a folder in TensorBoard."""
    everywhere.configure(tmp_path, mlflow_sqlite)
    places: dict[str, set[str]] = {"wandb": set(), "mlflow": set(), "neptune": set(), "tensorboard": set()}
    for experiment, rank in (("sweep", 0), ("sweep", 1), ("another", 0)):
        script = RANK.replace('run_id="job"', f'run_id="{experiment}", experiment="{experiment}"')
        everywhere.run(tmp_path, script, RANK=str(rank), WORLD_SIZE="2", TRACKER_BRIDGE_RANKS="all")
        run_id = f"{experiment}-rank{rank}"
        ids = everywhere.identities(tmp_path, run_id)
        found = MlflowClient(mlflow_sqlite).get_run(ids["mlflow"]["run_id"])
        stored = {
            "wandb": readback_wandb.read_run(tmp_path, run_id).last("groupName"),
            "mlflow": MlflowClient(mlflow_sqlite).get_experiment(found.info.experiment_id).name,
            "neptune": readback_neptune.read_run(tmp_path / "neptune", ids["neptune"]["run_id"]).experiment,
            "tensorboard": Path(ids["tensorboard"]["log_dir"]).parent.name,
        }
        for kind, name in stored.items():
            assert experiment in name, (kind, name)
            places[kind].add(name)
    assert {kind: len(names) for kind, names in places.items()} == dict.fromkeys(places, 2)


def test_the_first_rank_writes_by_default(tmp_path: Path) -> None:
    """The others hold a run that leaves no trace; the id is what it would be without ranks."""
    (tmp_path / "tracker.yaml").write_text("backends: [jsonl]")
    done = [scripts.run(tmp_path, RANK, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    assert [(process.returncode, process.stdout) for process in done] == [(0, "job\n")] * 2
    assert [path.name for path in (tmp_path / "tracker_bridge_runs").iterdir()] == ["job"]
    assert len(scripts.metrics(tmp_path / "job.jsonl", "loss")) == 20


def test_an_unknown_choice_is_named(tmp_path: Path) -> None:
    """A mistyped value is an error that says what there is."""
    (tmp_path / "tracker.yaml").write_text("backends: [jsonl]\nranks: every")
    done = scripts.run(tmp_path, RANK, RANK="0")
    assert done.returncode == 1
    assert "ranks: found 'every', expected one of first, all" in done.stderr


def test_resume_in_the_configuration_counts(tmp_path: Path) -> None:
    """`resume: true` of the file holds where the script's call says nothing about it."""
    (tmp_path / "tracker.yaml").write_text("backends: [jsonl]\nresume: true")
    for _ in range(2):
        done = scripts.run(tmp_path, RANK, RANK="0")
        assert done.returncode == 0, done.stderr
    assert len(scripts.metrics(tmp_path / "job.jsonl", "loss")) == 40
