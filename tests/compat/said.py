"""What the scripts say beside numbers, written down from their text, and what each tracker's own store holds of it.

A tracker that has no such thing holds the documented stand-in: MLflow a histogram as JSON and a series' texts and files
as artifacts with the step in the name, TensorBoard the path of a file as a text, Neptune's database the last file of a
series; W&B and TensorBoard have a text without a step at the step of a row.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from mlflow import MlflowClient

from tests import readback_mlflow, readback_neptune, readback_tensorboard, readback_wandb
from tracker_bridge.rundir import RunPaths, find_runs, load_manifest
from tracker_bridge.testing import StoredRun

Content = Union[bytes, Callable[[bytes], bool]]
"""What a file holds, or what holds of it."""


@dataclass(frozen=True)
class Said:
    """One run. `params`: name (`/` joins nested keys) -> text. `files`: (name, step) -> content."""

    tags: Mapping[str, str | None] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, list[tuple[int | None, str]]] = field(default_factory=dict)
    files: Mapping[tuple[str, int | None], Content] = field(default_factory=dict)
    histograms: Mapping[str, list[int]] = field(default_factory=dict)
    status: str = "finished"


Runs = Mapping[str, Said]
"""By name; `""`: the script's only run, which has none."""


def _pixels(content: bytes) -> tuple[int, int, int]:
    """Width, height, and how many colours a picture has."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return (*image.size, len(image.convert("RGB").getcolors() or ()))


def _noise(content: bytes) -> bool:
    return _pixels(content) == (8, 8, 64)


def mlflow_quickstart(folder: Path, stdout: str) -> Runs:
    params = {"solver": "lbfgs", "max_iter": "1000", "random_state": "8888"}
    tags = {"Training Info": "Basic LR model for iris data"}
    return {"": Said(tags, params, files={("notes.txt", None): b"hello"})}


def mlflow_tutorial(folder: Path, stdout: str) -> Runs:
    parent = next(load_manifest(paths).run_id for paths in _runs(folder) if load_manifest(paths).name == "search")
    nested = {f"lr={lr}": Said({"parent_run": parent}, {"lr": lr}) for lr in ("0.01", "0.1")}
    best = float(stdout.splitlines()[-1].split()[-1])
    files: dict[tuple[str, int | None], Content] = {
        ("losses.json", None): lambda content: json.loads(content)["0.1"] == best,
        ("about/metric.txt", None): b"lower is better",
    }
    return {**nested, "search": Said({"best": "0.1", "kind": "search"}, {"trials": "2", "model": "linear"}, {}, files)}


def mlflow_project(folder: Path, stdout: str) -> Runs:
    table = {"columns": ["step", "value"], "data": [[0, 0.5], [1, 0.25]]}
    main = Said(
        {"stage": "warm", "mlflow.note.content": "the main run"},
        {"seed": "5", "lr": "0.1"},
        files={
            ("blank.png", None): lambda content: _pixels(content) == (4, 4, 1),
            ("table.json", None): lambda content: json.loads(content) == table,
        },
    )
    return {"main": main, "worker-1": Said(), "worker-2": Said(), "broken": Said(status="failed")}


def neptune_quickstart(folder: Path, stdout: str) -> Runs:
    params = {"learning_rate": "0.001", "optimizer": "Adam", "batch_size": "64"}
    return {"quickstart": Said({"quickstart": None, "first": None}, _below("parameters", params))}


def neptune_tutorial(folder: Path, stdout: str) -> Runs:
    params = _below("parameters", {"lr": "0.01", "layers": "4", "width": "8", "steps": "6"})
    return {"gradient-norms": Said({"gradient_tracking": None, "pytorch": None}, params)}


def neptune_project(folder: Path, stdout: str) -> Runs:
    weights = [(folder / "out" / f"weights-{number}.txt").read_bytes() for number in range(2)]
    params = {"seed": "7", "epochs": "2", "batches": "5", "milestones": "(1, 3)", "started": "2026-01-02T03:04:05"}
    run = Said(
        {"project": None, "group-a": None},
        {**params, **_below("optimizer", {"name": "sgd", "lr": "0.05", "momentum": ""})},
        {
            "status": [(5, "epoch 0 done"), (10, "epoch 1 done")],
            # What the handler logs is also printed.
            "logs/project": list(enumerate(line for line in stdout.splitlines() if line.startswith("epoch "))),
        },
        {
            ("config.txt", None): lambda content: content.startswith(b"Config(seed=7, epochs=2, batches=5, optimizer="),
            ("checkpoints/weights", 5): weights[0],
            ("checkpoints/weights", 10): weights[1],
        },
        {"weights": [5, 10]},
    )
    return {"project": run}


def tensorboard_quickstart(folder: Path, stdout: str) -> Runs:
    return {"": Said()}


def tensorboard_tutorial(folder: Path, stdout: str) -> Runs:
    run = Said(
        params={"lr": "0.05", "optimizer": "sgd"},
        texts={"about": [(0, "linear **regression**")]},
        files={("noise.png", 0): _noise},
        histograms={"grad/weight": list(range(8)), "grad/bias": list(range(8))},
    )
    return {"linear_regression": run}


def tensorboard_project(folder: Path, stdout: str) -> Runs:
    return {f"project/{writer}": Said() for writer in ("train", "val", "system")}


def wandb_quickstart(folder: Path, stdout: str) -> Runs:
    return {"": Said(params={"learning_rate": "0.02", "architecture": "CNN", "dataset": "CIFAR-100", "epochs": "10"})}


def wandb_tutorial(folder: Path, stdout: str) -> Runs:
    run = Said(
        {"tutorial": None},
        {"epochs": "2", "batch_size": "8", "lr": "0.05", "hidden": "6"},
        {"notes": [(None, "a small net")]},
        {
            ("image.png", 9): _noise,
            ("predictions.table.json", 9): lambda content: json.loads(content)["columns"] == ["x", "y"],
        },
    )
    return {"mlp": run}


def wandb_project(folder: Path, stdout: str) -> Runs:
    args = {"project": "project", "epochs": "2", "batches": "3", "out": "weights", "artifact/weights/format": "txt"}
    return {
        f"lr-{lr}": Said(
            {"job_type": "train"},
            {**args, "lr": lr, **_below("model", {"depth": "2", "act": "relu"})},
            files={(f"weights/weights-{lr}.txt", None): (folder / "weights" / f"weights-{lr}.txt").read_bytes()},
        )
        for lr in ("0.1", "0.3")
    }


SAID: Mapping[str, Callable[[Path, str], Runs]] = {
    said.__name__: said
    for said in (
        mlflow_quickstart,
        mlflow_tutorial,
        mlflow_project,
        neptune_quickstart,
        neptune_tutorial,
        neptune_project,
        tensorboard_quickstart,
        tensorboard_tutorial,
        tensorboard_project,
        wandb_quickstart,
        wandb_tutorial,
        wandb_project,
    )
}


# --- what the stores hold


def assert_said(script: str, folder: Path, stdout: str) -> None:
    """Every run of `script` is in all four stores below `folder`, with its tags, params, texts, files and status."""
    runs = SAID[script](folder, stdout)
    left = dict(runs)
    for paths in _runs(folder):
        manifest = load_manifest(paths)
        said = left.pop(manifest.name if manifest.name in runs else "")
        ids = {backend: identity.ids for backend, identity in manifest.backends.items()}
        _in_mlflow(said, f"sqlite:///{folder}/bridged.db", ids["mlflow"]["run_id"], folder / "downloads")
        _in_neptune(said, folder / "neptune_logs", ids["neptune"]["run_id"])
        _in_wandb(said, folder / "wandb_logs", ids["wandb"]["run_id"])
        _in_tensorboard(said, Path(ids["tensorboard"]["log_dir"]))
    assert not left


def _in_mlflow(said: Said, uri: str, run_id: str, downloads: Path) -> None:
    client = MlflowClient(uri)
    folder = downloads / run_id
    folder.mkdir(parents=True)
    stored = readback_mlflow.stored_run(client, run_id, folder)
    # A note is MLflow's own, and no tag that a user set.
    notes = {tag: value for tag, value in said.tags.items() if tag.startswith("mlflow.")}
    assert client.get_run(run_id).data.tags.items() >= notes.items()
    assert stored.tags == {tag: value for tag, value in said.tags.items() if tag not in notes}
    assert {key.replace(".", "/"): value for key, value in stored.params.items()} == said.params
    assert stored.texts == said.texts
    assert stored.status == {"finished": "FINISHED", "failed": "FAILED"}[said.status]
    files = {
        name: content
        for name, content in stored.artifacts.items()
        if not name.startswith(("texts/", "histograms/")) and name not in ("params.json", "tracker_bridge/names.json")
    }
    _assert_files(files, {_before(name, step): content for (name, step), content in said.files.items()})
    _assert_histograms(said, stored)


def _in_neptune(said: Said, directory: Path, run_id: str) -> None:
    run = readback_neptune.read_run(directory, run_id)
    stored = readback_neptune.stored_run(run, readback_neptune.uploads(directory, run_id))
    own = ("tracker_bridge/", "runtime/", "source_code/")
    assert stored.tags == said.tags
    params = {key: str(value) for key, value in stored.params.items() if not key.startswith(own)}
    # A text without a step is an attribute, as a param that is a text is.
    assert params == {**said.params, **{name: text for name, ((step, text), *_) in said.texts.items() if step is None}}
    assert {name: texts for name, texts in stored.texts.items() if name in said.texts} == said.texts
    assert stored.status == said.status
    _assert_files(stored.artifacts, {name: content for (name, _), content in said.files.items()})
    _assert_histograms(said, stored)


def _in_wandb(said: Said, folder: Path, run_id: str) -> None:
    stored = readback_wandb.stored_run(readback_wandb.read_run(folder, run_id))
    assert stored.tags == said.tags
    assert {key: str(value) for key, value in stored.params.items()} == said.params
    _assert_texts(stored.texts, said)
    assert stored.status == {"finished": "0", "failed": "1"}[said.status]
    files = {_behind(name, step): content for (name, step), content in said.files.items()}
    _assert_files(stored.artifacts, files)
    _assert_histograms(said, stored)


def _in_tensorboard(said: Said, directory: Path) -> None:
    stored = readback_tensorboard.stored_run(directory)
    assert stored.tags == said.tags
    assert {key: str(value) for key, value in stored.params.items()} == said.params
    own = ("tracker_bridge/", "artifacts/")
    _assert_texts({name: texts for name, texts in stored.texts.items() if not name.startswith(own)}, said)
    assert stored.status == said.status
    pictures = {name: content for (name, _), content in said.files.items() if name.endswith(".png")}
    _assert_files({name: content for name, content in stored.artifacts.items() if name in pictures}, pictures)
    # Other files are named only, with where they are.
    others = [(name, step) for name, step in said.files if name not in pictures]
    assert set(stored.artifacts) == {name for name, _ in said.files}
    for name in {name for name, _ in others}:
        shown = [Path(text.split("`")[1]) for _, text in stored.texts[f"artifacts/{name}"]]
        for path, (_, content) in zip(shown, (file for file in said.files.items() if file[0][0] == name), strict=True):
            _assert_holds(path.read_bytes(), content)
    _assert_histograms(said, stored)


def _assert_texts(stored: Mapping[str, Sequence[tuple[float | None, str]]], said: Said) -> None:
    """As `said`; a text without a step stands at step 0."""
    assert stored == {name: [(step or 0, text) for step, text in texts] for name, texts in said.texts.items()}


def _assert_files(stored: Mapping[str, bytes | None], said: Mapping[str, Content]) -> None:
    assert set(stored) == set(said)
    for name, content in said.items():
        found = stored[name]
        assert found is not None
        _assert_holds(found, content)


def _assert_holds(found: bytes, content: Content) -> None:
    assert found == content if isinstance(content, bytes) else content(found)


def _assert_histograms(said: Said, stored: StoredRun) -> None:
    found = {name: sorted(step for step, _, _ in points) for name, points in stored.histograms.items()}
    assert found == said.histograms


def _before(name: str, step: int | None) -> str:
    """MLflow: the step before the file's name."""
    folder, slash, last = name.rpartition("/")
    return name if step is None else f"{folder}{slash}{step:012d}-{last}"


def _behind(name: str, step: int | None) -> str:
    """W&B: the step behind the file's name; an image is a value in its row."""
    if step is None or name.endswith(".png"):
        return name
    stem, dot, ending = name.rpartition(".")
    return f"{stem}_step{step}{dot}{ending}" if stem else f"{name}_step{step}"


def _below(folder: str, params: Mapping[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": value for name, value in params.items()}


def _runs(folder: Path) -> list[RunPaths]:
    return list(find_runs(folder / "tracker_bridge_runs"))
