"""Attaching live objects of the real SDKs: ours arrives, theirs is as it would be without, and they stay open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracker_bridge as bridge
from tests import readback_neptune, readback_wandb, scripts

HEAD = """
import json, sys, threading
import tracker_bridge as bridge
"""


def test_rows_between_those_of_a_script_that_lets_wandb_number_them(tmp_path: Path) -> None:
    """Every row of both sides is there, ours with its own axis; config and tags of the script are left alone."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import wandb
mine = wandb.init(mode="offline", dir=".", id="mine", config={"lr": 0.1}, tags=["own"], settings={"console": "off"})
wandb.log({"loss": 0.0})
with bridge.attach(mine, dir="runs", params={"lr": 9.0, "depth": 2}, tags=["ours"]) as run:
    for step in range(1, 5):
        wandb.log({"loss": float(step)})
        run.log_metrics({"gradients/a": step / 2}, step=step * 10)
    assert run.flush(30)
wandb.log({"loss": 5.0})
assert wandb.run is mine and "_log" not in vars(mine)
print(json.dumps([dict(mine.config), mine.tags]))
mine.finish()
""",
    )
    assert done.returncode == 0, done.stderr
    config, tags = json.loads(done.stdout.splitlines()[-1])
    assert config == {"lr": 0.1, "depth": 2}
    assert set(tags) == {"own", "ours"}
    rows = readback_wandb.read_run(tmp_path, "mine").rows
    assert [row["loss"] for row in rows if "loss" in row] == [0, 1, 2, 3, 4, 5]
    ours = [(row["tracker_bridge/step"], row["gradients/a"]) for row in rows if "gradients/a" in row]
    assert ours == [(10, 0.5), (20, 1.0), (30, 1.5), (40, 2.0)]


def test_rows_of_a_script_that_passes_steps_are_all_kept(tmp_path: Path) -> None:
    """With `step=` no row of the script is dropped or moved; ours are part of its rows, one each, none twice."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import wandb
mine = wandb.init(mode="offline", dir=".", id="mine", settings={"console": "off"})
wandb.log({"loss": 0.0}, step=0)
run = bridge.attach(mine, dir="runs")
for step in range(1, 21):
    wandb.log({"loss": float(step)}, step=step)
    wandb.log({"also": float(step)}, step=step)
    if step <= 6:
        run.log_metrics({"gradients/a": float(step)}, step=step)
        assert run.flush(30)
delivery = run.close()
assert delivery.complete, str(delivery)
wandb.log({"loss": 21.0}, step=21)
mine.finish()
""",
    )
    assert done.returncode == 0, done.stderr
    assert "rows are not in wandb" not in done.stderr
    rows = readback_wandb.read_run(tmp_path, "mine").rows
    assert [(row["_step"], row["loss"]) for row in rows if "loss" in row] == [(step, step) for step in range(22)]
    assert [row["also"] for row in rows if "also" in row] == list(range(1, 21))
    ours = [(row["tracker_bridge/step"], row["gradients/a"]) for row in rows if "gradients/a" in row]
    assert ours == [(step, step) for step in range(1, 7)]


def test_rows_for_which_the_script_begins_none_are_counted(tmp_path: Path) -> None:
    """More rows of ours than the script begins: it loses nothing, and what is not there is counted."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import wandb
mine = wandb.init(mode="offline", dir=".", id="mine", settings={"console": "off"})
run = bridge.attach(mine, dir="runs")
wandb.log({"loss": 0.0}, step=0)
for step in range(4):
    run.log_metrics({"a": float(step), "b": 1.0}, step=step)
assert run.flush(30)
for step in range(1, 3):
    wandb.log({"loss": float(step)}, step=step)
print(json.dumps(dict(run.close()["wandb"].dropped)))
wandb.log({"loss": 3.0}, step=3)
mine.finish()
""",
    )
    assert done.returncode == 0, done.stderr
    ((reason, count),) = json.loads(done.stdout.splitlines()[-1]).items()
    assert "began too few" in reason
    assert count == 4
    rows = readback_wandb.read_run(tmp_path, "mine").rows
    assert [(row["_step"], row["loss"]) for row in rows if "loss" in row] == [(step, step) for step in range(4)]
    assert [row["a"] for row in rows if "a" in row] == [0, 1]


@pytest.mark.parametrize("home", ["torch.utils.tensorboard", "tensorboardX"])
def test_a_writer_gets_our_series_in_its_own_file(tmp_path: Path, home: str) -> None:
    """One event file holds both sides' points; after the run is closed the script's writer goes on."""
    done = scripts.run(
        tmp_path,
        HEAD
        + f"""
from {home} import SummaryWriter
"""
        + """
writer = SummaryWriter("tb")
with bridge.attach(writer, dir="runs", params={"lr": 0.1}, route={"prefix": "bridge/"}) as run:
    for step in range(3):
        writer.add_scalar("loss", step / 2, step)
        run.log_metrics({"gradients/a": step * 2.0, "gradients/b": float("nan")}, step=step)
    run.log_histogram("weights", [1, 2], [0, 1, 2], step=1)
    run.log_text("note", "hello", 1)
writer.add_scalar("loss", 9.0, 3)
writer.close()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator("tb", size_guidance={"scalars": 0}).Reload()
points = [[(e.step, e.value) for e in read.Scalars(name)] for name in ("loss", "bridge/gradients/a")]
print(json.dumps([read.Tags()["scalars"], *points]))
print(json.dumps([read.Tags()["histograms"], read.Tags()["tensors"]]))
""",
    )
    assert done.returncode == 0, done.stderr
    scalars, loss, ours = json.loads(done.stdout.splitlines()[-2])
    assert set(scalars) == {"loss", "bridge/gradients/a", "bridge/gradients/b"}
    assert loss == [[0, 0.0], [1, 0.5], [2, 1.0], [3, 9.0]]
    assert ours == [[0, 0.0], [1, 2.0], [2, 4.0]]
    histograms, texts = json.loads(done.stdout.splitlines()[-1])
    assert any("weights" in name for name in histograms)
    assert any("note" in name for name in texts)
    assert len(list((tmp_path / "tb").glob("events*"))) == 1


def test_what_comes_after_the_script_has_closed_its_writer_is_dropped_and_counted(tmp_path: Path) -> None:
    """No second event file is begun; the delivery says how much was dropped, and why."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("tb")
run = bridge.attach(writer, dir="runs")
run.log_metrics({"a": 1.0}, step=0)
assert run.flush(30)
writer.close()
run.log_metrics({"a": 2.0}, step=1)
print(json.dumps(dict(run.close()["tensorboard"].dropped)))
""",
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    (reason,) = json.loads(done.stdout.splitlines()[-1])
    assert "closed its SummaryWriter" in reason
    assert len(list((tmp_path / "tb").glob("events*"))) == 1


@pytest.mark.parametrize("home", ["torch.utils.tensorboard", "tensorboardX"])
def test_a_writer_closed_while_it_is_written_to_holds_what_is_not_counted_as_dropped(tmp_path: Path, home: str) -> None:
    """The script closes in the middle of a batch, ten times: stored and dropped are all, and no fault is reported."""
    done = scripts.run(
        tmp_path,
        HEAD
        + f"""
from {home} import SummaryWriter
"""
        + """
import struct
from pathlib import Path
for number in range(10):
    writer = SummaryWriter(f"tb/{number}")
    reached = threading.Event()
    own, left = writer.file_writer.add_summary, [30 * number + 1]
    def add_summary(*arguments, own=own, left=left, reached=reached):
        left[0] -= 1
        if left[0] == 0:
            reached.set()
        return own(*arguments)
    writer.file_writer.add_summary = add_summary
    run = bridge.attach(writer, dir="runs")
    for step in range(400):
        run.log_metrics({"a": float(step)}, step=step)
    assert reached.wait(60)
    writer.close()
    assert "close" in vars(writer)
    dropped = sum(run.close()["tensorboard"].dropped.values())
    assert "close" not in vars(writer)
    (path,) = Path(f"tb/{number}").glob("events*")
    data, at, events = path.read_bytes(), 0, 0
    while at < len(data):
        at += 16 + struct.unpack("<Q", data[at : at + 8])[0]
        events += 1
    print(json.dumps([events - 1, dropped]))
""",
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    counts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [stored + dropped for stored, dropped in counts] == [400] * 10
    assert all(stored for stored, _ in counts)
    assert sum(dropped for _, dropped in counts) > 0
    assert "Error" not in done.stderr


def test_an_active_mlflow_run_is_logged_to_and_not_ended(tmp_path: Path) -> None:
    """By its id, from our thread; params with another value stay the script's, and its status is its own business."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import mlflow
mlflow.set_tracking_uri("sqlite:///ml.db")
with mlflow.start_run() as own:
    mlflow.log_param("lr", 0.1)
    run = bridge.attach(own, dir="runs", params={"lr": 9.0, "depth": 2})
    for step in range(3):
        mlflow.log_metric("loss", step / 2, step=step)
        run.log_metrics({"gradients/a": step * 2.0}, step=step)
    delivery = run.close()
    status = mlflow.get_run(own.info.run_id).info.status
    assert mlflow.active_run().info.run_id == own.info.run_id
client = mlflow.MlflowClient()
found = client.get_run(own.info.run_id)
history = [(m.step, m.value) for m in client.get_metric_history(own.info.run_id, "gradients/a")]
runs = len(mlflow.search_runs(search_all_experiments=True))
print(json.dumps([status, found.info.status, found.data.params, history, runs]))
""",
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    status, ended, params, history, runs = json.loads(done.stdout.splitlines()[-1])
    assert (status, ended, runs) == ("RUNNING", "FINISHED", 1)
    assert params == {"lr": "0.1", "depth": "2"}
    assert history == [[0, 0.0], [1, 2.0], [2, 4.0]]


def test_a_neptune_run_gets_our_series_and_stays_open(tmp_path: Path) -> None:
    """Series, params and tags of both sides are in the script's own run."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
from neptune_scale import Run
if __name__ == "__main__":
    own = Run(project="w/p", run_id="own", mode="offline", log_directory="np", enable_console_log_capture=False)
    with bridge.attach(own, dir="runs", params={"depth": 2}, tags=["ours"]) as run:
        for step in range(3):
            own.log_metrics({"loss": step / 2}, step=step)
            run.log_metrics({"gradients/a": step * 2.0}, step=step)
        run.log_text("note", "hello", 1)
    own.log_metrics({"loss": 9.0}, step=3)
    own.close()
""",
        timeout=110,
        NEPTUNE_API_TOKEN="x",
    )
    assert done.returncode == 0, done.stderr
    own = readback_neptune.read_run(tmp_path / "np", "own")
    assert [value for _, value, _ in own.series["loss"]] == [0.0, 0.5, 1.0, 9.0]
    assert [value for _, value, _ in own.series["gradients/a"]] == [0.0, 2.0, 4.0]


def test_a_mirrored_writer_that_is_attached_gets_each_value_once(tmp_path: Path) -> None:
    """Mirroring into a run that delivers to the very writer does not write its own calls to it again."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("tb")
with bridge.attach(writer, dir="runs") as run, bridge.mirror("tensorboard", run):
    writer.add_scalar("loss", 1.0, 0)
    run.log_metrics({"a": 1.0}, step=0)
writer.close()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator("tb").Reload()
print(json.dumps([[n, len(read.Scalars(n))] for n in sorted(read.Tags()["scalars"])]))
""",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [["a", 1], ["loss", 1]]


def test_misuse_says_what_can_be_attached() -> None:
    """No object, `wandb.run` before `wandb.init`, and a class are refused with the remedy."""
    with pytest.raises(bridge.UsageError, match="pass the live object"):
        bridge.attach()
    with pytest.raises(bridge.UsageError, match=r"before wandb\.init"):
        bridge.attach(None)
    with pytest.raises(bridge.UsageError, match="not the class"):
        bridge.attach(Path)


def test_rows_that_wait_for_a_row_of_the_script_are_bounded_in_memory(tmp_path: Path) -> None:
    """While a script that passes steps begins no row, ours wait up to a number of bytes; the rest is counted."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import resource, wandb
from tracker_bridge.attaching import _wandb
mine = wandb.init(mode="offline", dir=".", id="mine", settings={"console": "off"})
run = bridge.attach(mine, dir="runs")
wandb.log({"loss": 0.0}, step=0)
names = [f"gradients/{number:04}" for number in range(1000)]
def log(steps):
    for step in steps:
        run.log_metrics(dict.fromkeys(names, float(step)), step=step + 0.5)
    assert run.flush(60)
log(range(5))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
_wandb.MOST_WAITING_BYTES = 200 * 8400
log(range(5, 1500))
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
for step in range(1, 4):
    wandb.log({"loss": float(step)}, step=step)
(dropped,) = [dict(run.close()["wandb"].dropped)]
print(json.dumps([grown, dropped]))
mine.finish()
""",
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    grown, dropped = json.loads(done.stdout.splitlines()[-1])
    counts = {
        next(words for words in ("that wait", "to be part of") if words in reason): dropped[reason]
        for reason in dropped
    }
    assert counts == {"that wait": 1300 * 1000, "to be part of": 197 * 1000}
    # As dictionaries of columns 1,500 such rows would be 150 MiB.
    assert grown < 100
    rows = readback_wandb.read_run(tmp_path, "mine").rows
    assert [row["tracker_bridge/step"] for row in rows if "gradients/0000" in row] == [0.5, 1.5, 2.5]
    assert [(row["_step"], row["loss"]) for row in rows] == [(step, step) for step in range(4)]
