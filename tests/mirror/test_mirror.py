"""Mirroring the real SDKs: their own calls unchanged, every value copied, the very same functions back afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracker_bridge as bridge
from tests import readback_neptune, readback_wandb, scripts

HEAD = """
import json, math, os, sys
import tracker_bridge as bridge
def targets(copier):
    return [(t.owner, t.name, vars(t.owner).get(t.name)) for t in copier(None).targets()]
def same(before):
    assert before and all(vars(owner).get(name) is own for owner, name, own in before)
"""


def read(folder: Path) -> bridge.RunReader:
    return bridge.read(folder / "runs" / "copy")


def series(run: bridge.RunReader, name: str) -> list[tuple[int, float]]:
    steps, values = run.metrics()[name]
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def test_wandb_rows_config_media_and_texts_are_copied(tmp_path: Path) -> None:
    """A run that began before the mirror is copied from there on with W&B's own row numbers; W&B holds all its rows."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import numpy as np, wandb
from tracker_bridge.mirroring._wandb import WandbCopier
before = targets(WandbCopier)
mine = wandb.init(mode="offline", dir=".", id="mine", config={"lr": 0.1}, tags=["a"], settings={"console": "off"})
wandb.log({"loss": 9.0})
kept, module_save, module_log = mine.log, wandb.save, wandb.log
run = bridge.init({"backends": {}}, dir="runs", run_id="copy")
bridge.mirror("wandb")
wandb.log({"loss": 1.0, "deep": {"x": 2}})
assert kept({"loss": float("nan")}) is None
wandb.log({"loss": 3.0}, step=7)
wandb.log({"acc": 0.5})
wandb.config.update({"batch": 4})
wandb.config.depth = 2
wandb.summary["best"] = 0.9
open("weights.bin", "w").write("w")
wandb.save("weights.bin", policy="now")
wandb.log({"hist": wandb.Histogram([1.0, 2.0, 2.5]), "table": wandb.Table(columns=["a"], data=[[1]]), "note": "hello"})
try:
    wandb.log(5)
except TypeError as error:
    print(error)
bridge.unmirror("wandb")
same(before)
assert wandb.save == module_save and wandb.log == module_log and wandb.save.__func__ is module_save.__func__
wandb.log({"loss": 4.0})
run.close()
mine.finish()
""",
    )
    assert done.returncode == 0, done.stderr
    assert "wandb.log must be passed a dictionary" in done.stdout
    run = read(tmp_path)
    loss = series(run, "loss")
    assert [step for step, _ in loss] == [1, 2, 7]
    assert loss[0][1] == 1.0
    assert loss[1][1] != loss[1][1]
    assert loss[2][1] == 3.0
    assert series(run, "deep.x") == [(1, 2.0)]
    assert series(run, "acc") == [(7, 0.5)]
    assert run.params == {"lr": 0.1, "batch": 4, "depth": 2}
    assert set(run.tags) == {"a"}
    assert series(run, "summary/best")[0][1] == 0.9
    names = {artifact.name for artifact in run.artifacts()}
    assert {"weights.bin", "table.table.json"} <= names
    assert [text.text for text in run.texts() if text.name == "note"] == ["hello"]
    own = readback_wandb.read_run(tmp_path, "mine").rows
    assert [row["loss"] for row in own if "loss" in row and row["loss"] == row["loss"]] == [9.0, 1.0, 3.0, 4.0]


def test_a_fault_of_the_copy_stays_here(tmp_path: Path) -> None:
    """A full disk, a closed run and a value that only TensorBoard takes raise nothing into the script's own call."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("tb")
with bridge.mirror("tensorboard"):
    writer.add_scalar("no run yet", 1.0, 0)
    run = bridge.init({"backends": {}}, dir="runs", run_id="copy")
    writer.add_scalar("loss", "1.5", 0)
    run.log_metrics = None
    writer.add_scalar("loss", 2.0, 1)
    del run.log_metrics
    writer.add_scalar("loss", 3.0, 2)
    run.close()
    writer.add_scalar("loss", 4.0, 3)
writer.close()
""",
    )
    assert done.returncode == 0, done.stderr
    assert "no open run" in done.stderr
    assert "was not copied" in done.stderr
    assert series(read(tmp_path), "loss")[-1] == (2, 3.0)


def test_tensorboard_writers_are_copied(tmp_path: Path) -> None:
    """Writers of torch and tensorboardX; the second one's tags are told apart; inner calls are not copied twice."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import numpy as np, torch, tensorboardX
from torch.utils.tensorboard import SummaryWriter
from tracker_bridge.mirroring._tensorboard import TensorBoardCopier
before = targets(TensorBoardCopier)
run = bridge.init({"backends": {}}, dir="runs", run_id="copy")
bridge.mirror("tensorboard", run)
train, test = SummaryWriter("tb/train"), tensorboardX.SummaryWriter("tb/test")
for step in range(3):
    train.add_scalar("loss", torch.tensor(step / 2), step)
    test.add_scalar(tag="loss", scalar_value=step * 2.0, global_step=step)
train.add_scalars("both", {"a": 1, "b": 2}, 5)
train.add_histogram("weights", np.arange(10.0), 1)
train.add_text("note", "hello", 1)
train.add_image("picture", torch.zeros(3, 2, 2), 1)
train.add_hparams({"lr": 0.1}, {"best": 0.5})
bridge.unmirror()
same(before)
train.add_scalar("loss", 9.0, 9)
train.close(); test.close(); run.close()
""",
    )
    assert done.returncode == 0, done.stderr
    run = read(tmp_path)
    assert series(run, "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert series(run, "test/loss") == [(0, 0.0), (1, 2.0), (2, 4.0)]
    assert series(run, "both/a") == [(5, 1.0)]
    assert series(run, "best") == [(0, 0.5)]
    assert run.params == {"lr": 0.1}
    assert [text.text for text in run.texts()] == ["hello"]
    assert [artifact.name for artifact in run.artifacts()] == ["picture.png"]


def test_mlflow_runs_are_copied(tmp_path: Path) -> None:
    """Fluent and client calls with MLflow's steps and times; a nested run has its name in front of each."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import mlflow
from tracker_bridge.mirroring._mlflow import MlflowCopier
before = targets(MlflowCopier)
mlflow.set_tracking_uri("sqlite:///ml.db")
run = bridge.init({"backends": {}}, dir="runs", run_id="copy")
bridge.mirror("mlflow")
with mlflow.start_run(run_name="outer") as outer:
    mlflow.log_params({"lr": 0.1})
    mlflow.log_param("depth", 3)
    mlflow.set_tag("stage", "test")
    for step in range(3):
        mlflow.log_metric("loss", step / 2, step=step)
    mlflow.log_metrics({"a": 1.0, "b": math.nan}, step=7)
    mlflow.log_text("hello", "notes/note.txt")
    with mlflow.start_run(run_name="inner", nested=True):
        mlflow.log_metric("loss", 9.0, step=1)
    try:
        mlflow.log_param("depth", 4)
    except mlflow.exceptions.MlflowException:
        print("refused")
bridge.unmirror("mlflow")
same(before)
run.close()
print(json.dumps(mlflow.get_run(outer.info.run_id).data.params))
""",
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == {"lr": "0.1", "depth": "3"}
    run = read(tmp_path)
    assert series(run, "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert series(run, "a") == [(7, 1.0)]
    assert series(run, "inner/loss") == [(1, 9.0)]
    assert run.params["depth"] == 3
    assert dict(run.tags) == {"stage": "test"}
    assert [artifact.name for artifact in run.artifacts()] == ["notes/note.txt"]


def test_neptune_runs_are_copied(tmp_path: Path) -> None:
    """What a script logs with `neptune_scale.Run` is in both; what its constructor logs by itself is not copied."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
from neptune_scale import Run
from neptune_scale.types import File, Histogram
from tracker_bridge.mirroring._neptune import NeptuneCopier
if __name__ == "__main__":
    before = targets(NeptuneCopier)
    run = bridge.init({"backends": {}}, dir="runs", run_id="copy")
    bridge.mirror("neptune_scale")
    own = Run(project="w/p", run_id="own", mode="offline", log_directory="np", enable_console_log_capture=False)
    for step in range(3):
        own.log_metrics({"loss": step / 2}, step=step)
    own.log_configs({"lr": 0.1})
    own.add_tags(["a"])
    own.log_string_series({"note": "hello"}, step=1)
    own.log_histograms({"h": Histogram(bin_edges=[0, 1, 2], counts=[3, 4])}, step=1)
    own.assign_files({"f.txt": File(b"content", mime_type="text/plain")})
    bridge.unmirror("neptune_scale")
    same(before)
    own.close()
    run.close()
""",
        timeout=110,
        NEPTUNE_API_TOKEN="x",
    )
    assert done.returncode == 0, done.stderr
    run = read(tmp_path)
    assert series(run, "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert run.params == {"lr": 0.1}
    assert set(run.tags) == {"a"}
    assert [text.text for text in run.texts()] == ["hello"]
    assert [artifact.name for artifact in run.artifacts()] == ["f.txt"]
    own = readback_neptune.read_run(tmp_path / "np", "own")
    assert [value for _, value, _ in own.series["loss"]] == [0.0, 0.5, 1.0]


def test_misuse_names_the_remedy() -> None:
    """An unknown tracker and a second mirror say what to do; unmirroring what is not mirrored is harmless."""
    with pytest.raises(bridge.UsageError, match="did you mean 'wandb'"):
        bridge.mirror("wandv")
    with bridge.mirror("tensorboard"), pytest.raises(bridge.UsageError, match="unmirror"):
        bridge.mirror("tensorboard")
    bridge.unmirror()
    bridge.unmirror("mlflow")
