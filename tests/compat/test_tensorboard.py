"""The stand-in for SummaryWriter: several writers at once, scalars, histograms, media, hparams, what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import scripts
from tracker_bridge.rundir import find_runs, load_manifest

HEAD = "import os, sys\nimport numpy as np\nfrom tracker_bridge.compat.tensorboard import SummaryWriter\n"


def run_script(folder: Path, text: str, code: int = 0) -> dict[str, Path]:
    """Run a script with a `jsonl` file for each run; name of the run -> its file."""
    done = scripts.run(folder, HEAD + text, TRACKER_BRIDGE_BACKENDS="jsonl")
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    assert done.returncode == code, done.stderr
    runs = {load_manifest(run).name or run.root.name: run for run in find_runs(folder / "tracker_bridge_runs")}
    return {name: folder / f"{run.root.name}.jsonl" for name, run in runs.items()}


def found(path: Path, kind: str) -> list[Any]:
    return [(line["step"], line[kind]) for line in scripts.lines(path) if kind in line and "step" in line]


def test_writers_at_once_are_runs_named_after_their_folders(tmp_path: Path) -> None:
    """Interleaved writers do not mix; their folders exist; both spellings of the argument work."""
    runs = run_script(
        tmp_path,
        """
train, val = SummaryWriter("runs/exp/train"), SummaryWriter(logdir="runs/exp/val")
for step in range(3):
    train.add_scalar("loss", step, step); val.add_scalar("loss", np.float32(-step), np.int64(step))
train.add_scalars("both", {"a": 1, "b": 2}, 7, walltime=1700000000.5)
train.add_scalar("no_step", 1); train.add_scalar("no_step", 2)
print(train.log_dir, val.get_logdir(), os.path.isdir("runs/exp/val"))
print(SummaryWriter(comment="_x").log_dir.endswith("_x"))
""",
    )
    assert len(runs) == 3
    assert scripts.metrics(runs["exp/train"], "loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert scripts.metrics(runs["exp/val"], "loss") == [(0, 0.0), (1, -1.0), (2, -2.0)]
    assert scripts.metrics(runs["exp/train"], "both/b") == [(7, 2.0)]
    assert scripts.metrics(runs["exp/train"], "no_step") == [(0, 1.0), (1, 2.0)]
    line = next(line for line in scripts.lines(runs["exp/train"]) if "both/a" in line.get("metrics", {}))
    assert line["time_ns"] == 17 * 10**17 + 5 * 10**8
    assert (tmp_path / "stdout").read_text().split() == ["runs/exp/train", "runs/exp/val", "True", "True"]


def test_histograms_texts_and_media(tmp_path: Path) -> None:
    """Counts are kept, bins are TensorBoard's, images and sound are files; pages of TensorBoard's own are reported."""
    runs = run_script(
        tmp_path,
        """
with SummaryWriter("h") as w:
    w.add_histogram("normal", np.random.default_rng(0).normal(size=1000), 1)
    w.add_histogram("ten", np.arange(10.0), 1, bins=10); w.add_histogram("nan", np.array([1.0, np.nan]), 1)
    w.add_histogram("all_nan", np.array([np.nan]), 1)
    w.add_histogram_raw("raw", 0, 3, 3, 3, 5, [1, 2, 3], [1, 1, 1], 2)
    w.add_text("note", "hello", 4)
    w.add_image("chw", np.zeros((3, 4, 5), np.uint8), 1); w.add_image("hw", np.ones((4, 5)), 1, dataformats="HW")
    w.add_images("batch", np.zeros((2, 3, 4, 5)), 1); w.add_audio("tone", np.zeros(100), 1, sample_rate=8000)
    import matplotlib; matplotlib.use("agg"); import matplotlib.pyplot as plt
    figure = plt.figure(); w.add_figure("fig", figure, 2); print(plt.fignum_exists(figure.number))
    w.add_graph(None); w.add_embedding(None); w.add_pr_curve("x", [1], [1]); w.add_video("v", None); w.flush()
    try:
        w.add_histogram("empty", np.array([]))
    except ValueError as error:
        print(error)
    try:
        w.add_scalar("none", None)
    except NotImplementedError as error:
        print("NotImplementedError")
""",
    )
    path = runs["h"]
    histograms = dict(pair for _, one in found(path, "histogram") for pair in one.items())
    assert sum(histograms["normal"]["counts"]) == 1000
    edges = np.array(histograms["normal"]["edges"])
    positive = edges[edges > 1e-6]
    # Neighbours are merged until there are at most 512 bins.
    assert np.allclose((positive[1:] / positive[:-1])[:-1], 1.1**2)
    assert histograms["ten"]["counts"] == [1.0] * 10
    assert sum(histograms["nan"]["counts"]) == 1
    assert histograms["raw"] == {"edges": [0.0, 1.0, 2.0, 3.0], "counts": [1.0, 1.0, 1.0]}
    assert "all_nan" not in histograms
    assert found(path, "text") == [(4, {"note": "hello"})]
    files = {name: Path(file) for _, one in found(path, "artifact") for name, file in one.items()}
    from PIL import Image

    sizes = {}
    for name in ("chw.png", "hw.png", "batch.png"):
        with Image.open(files[name]) as image:
            sizes[name] = image.size
    assert sizes == {"chw.png": (5, 4), "hw.png": (5, 4), "batch.png": (10, 4)}
    assert {"tone.wav", "fig.png"} <= set(files)
    assert (tmp_path / "stdout").read_text().splitlines() == [
        "False",
        "The input has no element.",
        "NotImplementedError",
    ]
    (run,) = find_runs(tmp_path / "tracker_bridge_runs")
    coverage = json.loads((run.root / "coverage.json").read_text())
    assert {"add_graph", "add_embedding", "add_pr_curve", "add_video"} <= set(coverage["not carried"])
    assert {"add_image", "add_images", "add_figure", "add_audio"} <= set(coverage["degraded"])


def test_hparams_are_params_and_a_second_set_is_a_run(tmp_path: Path) -> None:
    """A sweep over one writer makes a run for each set; types that TensorBoard refuses are refused."""
    runs = run_script(
        tmp_path,
        """
with SummaryWriter("sweep") as w:
    for number in range(2):
        w.add_hparams({"lr": 0.1 * number, "opt": "adam", "none": None}, {"hp/loss": number})
    for bad in (({"x": [1]}, {}), ([1], {})):
        try:
            w.add_hparams(*bad)
        except (TypeError, ValueError) as error:
            print(type(error).__name__)
""",
    )
    assert set(runs) == {"sweep", "sweep/hparams_1"}
    assert scripts.metrics(runs["sweep/hparams_1"], "hp/loss") == [(0, 1.0)]
    params = [line["params"] for line in scripts.lines(runs["sweep"]) if "params" in line]
    assert params == [{"lr": 0.0, "opt": "adam"}]
    assert (tmp_path / "stdout").read_text().split() == ["ValueError", "TypeError"]


@pytest.mark.parametrize(("ending", "status", "code"), [("", "finished", 0), ("1 / 0", "failed", 1)])
def test_a_writer_that_nobody_holds_or_closes_is_finished_at_exit(
    tmp_path: Path, ending: str, status: str, code: int
) -> None:
    """A dropped writer loses nothing; one that is used after close() goes on."""
    runs = run_script(
        tmp_path,
        f"""
def train():
    w = SummaryWriter("dropped"); w.add_scalar("a", 1, 0)
train()
w = SummaryWriter("closed"); w.add_scalar("a", 1, 0); w.close(); w.add_scalar("a", 2, 1)
{ending}
""",
        code,
    )
    assert scripts.metrics(runs["dropped"], "a") == [(0, 1.0)]
    assert scripts.statuses(runs["dropped"]) == [status]
    assert scripts.metrics(runs["closed"], "a") == [(0, 1.0), (1, 2.0)]


def test_sync_tensorboard_writes_into_the_wandb_run(tmp_path: Path) -> None:
    """Writers of a script with `wandb.init(sync_tensorboard=True)` belong to that run and do not end it."""
    runs = run_script(
        tmp_path,
        """
from tracker_bridge.compat import wandb
run = wandb.init(name="both", sync_tensorboard=True)
with SummaryWriter("x") as w:
    w.add_scalar("tb", 1, 5)
run.log({"own": 2})
""",
    )
    assert set(runs) == {"both"}
    assert scripts.metrics(runs["both"], "tb") == [(5, 1.0)]
    assert scripts.metrics(runs["both"], "own") == [(0, 2.0)]


def test_summaries_of_frameworks_reach_the_run(tmp_path: Path) -> None:
    """What Lightning's logger hands to the file writer itself: hparams and scalars; other protos are reported."""
    runs = run_script(
        tmp_path,
        """
from tracker_bridge.compat.tensorboard.summary import hparams, scalar
w = SummaryWriter("x")
for one in hparams({"lr": 0.1}, {"hp_metric": -1}):
    w._get_file_writer().add_summary(one)
w.file_writer.add_summary(scalar("s", 2.0), 3)
w.file_writer.add_event(object())
try:
    from tracker_bridge.compat.tensorboard.summary import image
    image("x", None)
except NotImplementedError as error:
    print(error)
""",
    )
    assert [line["params"] for line in scripts.lines(runs["x"]) if "params" in line] == [{"lr": 0.1}]
    assert scripts.metrics(runs["x"], "s") == [(3, 2.0)]
    assert "file_writer: event protos are not translated" in (tmp_path / "stderr").read_text()
    assert "has no meaning here" in (tmp_path / "stdout").read_text()
