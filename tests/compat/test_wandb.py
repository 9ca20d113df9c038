"""The stand-in for wandb: its numbering of rows, config, summary, media, artifacts, errors and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import scripts
from tracker_bridge.rundir import find_runs, load_manifest

HEAD = "import json, os, sys\nfrom tracker_bridge.compat import wandb\n"


def run_script(folder: Path, text: str, code: int = 0, **more: str) -> dict[str, Path]:
    """Run a script with a `jsonl` file for each run; name of the run -> its file."""
    done = scripts.run(folder, HEAD + text, TRACKER_BRIDGE_BACKENDS="jsonl", **more)
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    assert done.returncode == code, done.stderr
    runs = {load_manifest(run).name or run.root.name: run for run in find_runs(folder / "tracker_bridge_runs")}
    return {name: folder / f"{run.root.name}.jsonl" for name, run in runs.items()}


def found(path: Path, kind: str) -> list[Any]:
    return [(line.get("step"), line[kind]) for line in scripts.lines(path) if kind in line]


def test_rows_are_numbered_as_wandb_numbers_them(tmp_path: Path) -> None:
    """Own counter, `commit=False`, `step=`, a step-less row after one with a step; a late row is kept."""
    runs = run_script(
        tmp_path,
        """
run = wandb.init(name="r")
wandb.log({"a": 0}); wandb.log({"b": 1}, commit=False); wandb.log({"c": 1}); run.log({"a": 2})
wandb.log({"a": 7}, step=7); wandb.log({"b": 7}); wandb.log({"c": 8}); wandb.log({"a": 9}, step=9, commit=True)
wandb.log({"late": 3}, step=3); wandb.log({"d": 10})
print(run.step)
for bad in ("1.5", "'x'", "2.0"):
    try:
        run.log({"x": 1}, step=eval(bad))
    except TypeError as error:
        print("TypeError")
for bad in ([1], {1: 2}):
    try:
        run.log(bad)
    except ValueError:
        print("ValueError")
""",
    )
    path = runs["r"]
    assert [scripts.metrics(path, name) for name in "abcd"] == [
        [(0, 0.0), (2, 2.0), (7, 7.0), (9, 9.0)],
        [(1, 1.0), (7, 7.0)],
        [(1, 1.0), (8, 8.0)],
        [(10, 10.0)],
    ]
    assert scripts.metrics(path, "late") == [(3, 3.0)]
    assert (tmp_path / "stdout").read_text().split() == ["11", *["TypeError"] * 3, *["ValueError"] * 2]
    assert scripts.statuses(path) == ["finished"]


def test_an_axis_of_its_own_becomes_the_step(tmp_path: Path) -> None:
    """`define_metric`: patterns and exact names, the axis' last value where a row has none; fractions are told."""
    runs = run_script(
        tmp_path,
        """
run = wandb.init(name="r")
wandb.define_metric("epoch"); run.define_metric("val/*", step_metric="epoch"); run.define_metric("val/own")
run.log({"val/a": 0.5, "epoch": 10, "val/own": 1}); run.log({"val/a": 0.25}); run.log({"val/a": 1, "epoch": 11})
run.log({"val/a": 2, "epoch": 11.5})
""",
    )
    assert scripts.metrics(runs["r"], "val/a") == [(10, 0.5), (10, 0.25), (11, 1.0), (3, 2.0)]
    assert scripts.metrics(runs["r"], "val/own") == [(0, 1.0)]
    assert scripts.metrics(runs["r"], "epoch") == [(0, 10.0), (2, 11.0), (3, 11.5)]
    assert "no whole numbers" in (tmp_path / "stderr").read_text()


def test_config_in_all_its_forms(tmp_path: Path) -> None:
    """Mapping, Namespace, YAML, attributes and items; a change is refused but where it is allowed."""
    (tmp_path / "config-defaults.yaml").write_text("wandb_version: 1\ndepth: {value: 3, desc: how deep}\nlr: 1\n")
    runs = run_script(
        tmp_path,
        """
import argparse
run = wandb.init(name="r", config=argparse.Namespace(lr=0.1, drop=0.5, nested={"a": 1}), config_exclude_keys=["drop"])
config = wandb.config
config.epochs = 3; config["batch"] = 8
config.update({"lr": 0.2}, allow_val_change=True); config.setdefaults({"lr": 9, "new": 1})
for change in (lambda: config.update({"lr": 5}), lambda: setattr(config, "batch", 9)):
    try:
        change()
    except wandb.errors.ConfigError as error:
        print("refused", isinstance(error, wandb.Error))
print(json.dumps(dict(config)), config.get("nope", 4), "lr" in config, config.nested["a"])
try:
    config.nope
except AttributeError as error:
    print("AttributeError")
""",
    )
    out = (tmp_path / "stdout").read_text().splitlines()
    final = {"depth": 3, "lr": 0.2, "nested": {"a": 1}, "epochs": 3, "batch": 8, "new": 1}
    assert out == ["refused True", "refused True", f"{json.dumps(final)} 4 True 1", "AttributeError"]
    logged: dict[str, Any] = {}
    for _, params in found(runs["r"], "params"):
        logged |= params
    assert logged == final


def test_everything_that_is_no_number_is_kept_or_told(tmp_path: Path) -> None:
    """Texts, nested rows, histograms, images, tables, html, charts, artifacts, saved files, files in run.dir."""
    runs = run_script(
        tmp_path,
        """
import numpy as np
run = wandb.init(name="r", tags=["x"], notes="about", job_type="train")
run.log({"text": "hello", "deep": {"er": {"v": 1}}, "array": np.arange(100.0), "list": [1, 2], "none": None,
         "h": wandb.Histogram(np_histogram=([1, 2], [0, 1, 2])), "img": wandb.Image(np.zeros((2, 3, 3), np.uint8)),
         "two": [wandb.Image(np.zeros((2, 2))), wandb.Image(np.ones((2, 2)))], "html": wandb.Html("<b>x</b>"),
         "table": wandb.Table(columns=["a", "b"], data=[[1, "x"]]), "video": wandb.Video(np.zeros((1, 3, 2, 2))),
         "pr": wandb.plot.pr_curve([0], [[1]]),
         "line": wandb.plot.line(wandb.Table(columns=["x"], data=[[1]]), "x", "x")})
artifact = wandb.Artifact("set", type="dataset", metadata={"rows": 3})
with artifact.new_file("inner/a.txt") as file:
    file.write("artifact")
print(run.log_artifact(artifact).wait() is artifact)
open("saved.txt", "w").write("saved"); wandb.save("saved.txt")
open(os.path.join(run.dir, "model.txt"), "w").write("model")
run.summary["best"] = 0.5; run.summary.update({"note": "good"})
wandb.alert("title", "text", level=wandb.AlertLevel.WARN)
run.tags += ("y",)
try:
    run.log({"odd": object()})
except TypeError as error:
    print("TypeError")
""",
    )
    path = runs["r"]
    assert (tmp_path / "stdout").read_text().split() == ["True", "TypeError"]
    texts = dict(pair for _, text in found(path, "text") for pair in text.items())
    assert texts["text"] == "hello"
    assert json.loads(texts["list"]) == [1, 2]
    assert texts["notes"] == "about"
    assert texts["summary/note"] == "good"
    assert texts["alerts/title"].endswith("text")
    assert scripts.metrics(path, "deep.er.v") == [(0, 1.0)]
    assert scripts.metrics(path, "summary/best") == [(1, 0.5)]
    histograms = dict(pair for _, one in found(path, "histogram") for pair in one.items())
    assert histograms["h"] == {"edges": [0.0, 1.0, 2.0], "counts": [1.0, 2.0]}
    assert sum(histograms["array"]["counts"]) == 100
    files = {name: Path(file) for _, one in found(path, "artifact") for name, file in one.items()}
    assert {"img.png", "two/0.png", "two/1.png", "html.html", "table.table.json", "line.table.json"} <= set(files)
    assert {"set/inner/a.txt", "saved.txt", "model.txt"} <= set(files)
    assert json.loads(files["table.table.json"].read_text()) == {"columns": ["a", "b"], "data": [[1, "x"]]}
    from PIL import Image

    with Image.open(files["img.png"]) as image:
        assert (image.size, image.mode) == ((3, 2), "RGB")
    assert files["model.txt"].read_text() == "model"
    assert found(path, "tags")[-1][1] == {"x": None, "job_type": "train", "y": None}
    (run,) = find_runs(tmp_path / "tracker_bridge_runs")
    coverage = json.loads((run.root / "coverage.json").read_text())
    assert {"log: None", "log: Video", "log: Chart"} <= set(coverage["not carried"])
    assert {"log: Image", "log: Table", "log: array", "log_artifact", "summary", "alert"} <= set(coverage["degraded"])


def test_runs_follow_one_another_as_in_wandb(tmp_path: Path) -> None:
    """init twice is one run; reinit and finish begin others; before and after a run, calls raise W&B's own errors."""
    runs = run_script(
        tmp_path,
        """
for call in (lambda: wandb.log({}), lambda: wandb.config.lr, lambda: wandb.summary["a"], lambda: wandb.watch(None)):
    try:
        call()
    except wandb.Error as error:
        print(str(error).split("(")[0])
first = wandb.init(name="first", group="g", project="p")
print(wandb.init(name="ignored") is first, wandb.run is first, isinstance(first, wandb.sdk.wandb_run.Run))
second = wandb.init(name="second", reinit=True)
second.log({"a": 1}); wandb.finish()
print(wandb.run)
try:
    second.log({"a": 2})
except wandb.UsageError as error:
    print("finished" in str(error))
with wandb.init(name="third") as run:
    run.finish(exit_code=3)
for name in ("Api", "sweep", "agent", "use_artifact"):
    try:
        getattr(wandb, name)("x")
    except NotImplementedError as error:
        print(name, "only records" in str(error))
print(hasattr(wandb, "no_such_name"), wandb.login(key="K" * 40), wandb.util.generate_id().isalnum())
""",
    )
    assert set(runs) == {"first", "second", "third"}
    assert scripts.statuses(runs["third"]) == ["failed"]
    assert scripts.metrics(runs["second"], "a") == [(0, 1.0)]
    out = (tmp_path / "stdout").read_text().splitlines()
    assert out[:4] == ["You must call wandb.init"] * 4
    assert out[4:] == [
        "True True True",
        "None",
        "True",
        *(f"{name} True" for name in ("Api", "sweep", "agent", "use_artifact")),
        "False True True",
    ]


@pytest.mark.parametrize("how", ["mode='disabled'", "settings=wandb.Settings(mode='disabled')", ""])
def test_disabled_is_silent_and_complete(tmp_path: Path, how: str) -> None:
    """`mode="disabled"` by argument, settings or environment: config and log work, nothing is written."""
    more = {} if how else {"WANDB_MODE": "disabled"}
    runs = run_script(
        tmp_path,
        f"""
run = wandb.init({how})
wandb.config.lr = 1; wandb.log({{"a": 1, "x": wandb.Table()}}); run.watch(None); run.summary["b"] = 2
print(run.disabled, wandb.config.lr, run.summary["a"], run.summary["b"], os.path.isdir(run.dir), run.url)
wandb.finish()
""",
        **more,
    )
    assert runs == {}
    assert (tmp_path / "stdout").read_text().split() == ["True", "1", "1", "2", "True", "None"]
    assert (tmp_path / "stderr").read_text() == ""


def test_a_loss_tensor_keeps_no_graph_alive(tmp_path: Path) -> None:
    """The summary knows the last loss, but its graph and its activations are freed."""
    run_script(
        tmp_path,
        """
import gc, weakref, torch
run = wandb.init(mode="disabled")
x = torch.ones(3, requires_grad=True)
y = x * 2
alive = weakref.ref(y)
run.log({"loss": y.sum()})
del y
gc.collect()
print(alive() is None, float(run.summary["loss"]))
""",
    )
    assert (tmp_path / "stdout").read_text().split() == ["True", "6.0"]
