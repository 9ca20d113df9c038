"""Gradients of unmodified scripts: every optimizer and its model are found at the first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import scripts
from tests.launch.test_run import LAUNCH, python
from tracker_bridge.rundir import find_runs

CONFIG = "backends: {jsonl: {path: '{run_id}.jsonl'}}\ngradients: {every_n_steps: 2, exclude: ['*.bias']}\n"
HEAD = """
import gc, json, torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 4), torch.randn(16, 1)
expected = []
def train(model, optimizer, steps, log=None):
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        expected.append({n: float(p.grad.double().norm()) for n, p in model.named_parameters()})
        optimizer.step()
        if log:
            log({"loss": loss.item()}, step=step)
"""


def launched(folder: Path, text: str, **more: str) -> list[Path]:
    """Run a script under the launcher with the configuration above; its runs' files, oldest first."""
    (folder / "tracker.yaml").write_text(CONFIG)
    (folder / "script.py").write_text(HEAD + text)
    done = python(folder, *LAUNCH, "--config", "tracker.yaml", "script.py", TRACKER_BRIDGE_BACKENDS="", **more)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return [folder / f"{run.root.name}.jsonl" for run in find_runs(folder / "tracker_bridge_runs")]


def series(path: Path) -> dict[str, list[tuple[int, Any]]]:
    """Every series of a file."""
    names = {name for line in scripts.lines(path) for name in line.get("metrics", {})}
    return {name: scripts.metrics(path, name) for name in names}


def test_a_script_without_any_tracker_gets_a_run_of_its_own(tmp_path: Path) -> None:
    """Values, cadence and selection are those of the configuration; the run ends as the script does."""
    (path,) = launched(
        tmp_path,
        """
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
train(model, torch.optim.AdamW(model.parameters()), 5)
print(json.dumps(expected))
""",
    )
    found = series(path)
    expected = json.loads((tmp_path / "stdout").read_text())
    for name in ("0.weight", "2.weight"):
        assert [step for step, _ in found[f"gradients/{name}"]] == [0, 2, 4]
        for step, value in found[f"gradients/{name}"]:
            assert value == pytest.approx(expected[step][name], rel=1e-5)
    assert not any(name.endswith(".bias") for name in found)
    assert scripts.statuses(path) == ["finished"]


def test_norms_join_the_scripts_own_run_and_each_run_of_a_sweep(tmp_path: Path) -> None:
    """Two runs one after another, each with a new model and optimizer, and one that goes on with the last model."""
    paths = launched(
        tmp_path,
        """
import wandb
for trial in range(2):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with wandb.init(name=f"trial-{trial}") as run:
        train(model, optimizer, 3, run.log)
with wandb.init(name="goes on") as run:
    train(model, optimizer, 1, run.log)
train(model, optimizer, 3)
""",
    )
    assert len(paths) == 3
    found = sorted((series(path) for path in paths), key=lambda run: len(run["loss"]))
    assert [len(run["loss"]) for run in found] == [1, 3, 3]
    assert [len(run["gradients/weight"]) for run in found] == [1, 2, 2]


def test_several_models_optimizers_and_wrappers(tmp_path: Path) -> None:
    """Wrapped models have clean names; two optimizers of one model are apart; all models of one are found."""
    (path,) = launched(
        tmp_path,
        """
class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 1)
    def forward(self, x):
        return self.head(torch.relu(self.body(x)))

pair = Wrapper(Pair())
copy = Pair()
first = torch.optim.SGD(pair.inner.body.parameters(), lr=0.1)
second = torch.optim.SGD(pair.inner.head.parameters(), lr=0.1)
encoder, decoder = nn.Linear(4, 5), nn.Linear(5, 1)
both = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
import tracker_bridge
for step in range(3):
    pair(x).sum().backward()
    first.step(); second.step()
    decoder(encoder(x)).sum().backward()
    both.step()
run = tracker_bridge.current()

print(sorted(type(c._model).__name__ for c in run._collectors))
""",
    )
    found = {name for name, points in series(path).items() if [step for step, _ in points] == [0, 2]}
    assert {"gradients/inner.body.weight", "gradients/inner.head.weight"} <= found
    assert (tmp_path / "stdout").read_text().strip() == "['Linear', 'Linear', 'Wrapper']"
    assert {"gradients/linear/weight", "gradients/linear2/weight"} <= found


def test_a_scaler_is_found_and_skipped_steps_are_told(tmp_path: Path) -> None:
    """The GradScaler that calls the optimizer is attached: norms are unscaled, an overflow is a skipped step."""
    (path,) = launched(
        tmp_path,
        """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for step in range(5):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    scaler.scale(loss).backward()
    if step == 2:
        model.weight.grad.fill_(float("inf"))
    else:
        wanted = float(model.weight.grad.norm()) / scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
print(json.dumps(wanted))
""",
    )
    wanted = json.loads((tmp_path / "stdout").read_text())
    found = series(path)
    assert [value for _, value in found["gradients/skipped"]] == [0.0, 1.0, 0.0]
    assert found["gradients/weight"][0][1] == pytest.approx(wanted, rel=1e-5)


def test_nothing_is_watched_twice_and_nothing_without_the_section(tmp_path: Path) -> None:
    """A script that watches by itself, or by `wandb.watch`, has one collector; without `gradients` there is no hook."""
    (path,) = launched(
        tmp_path,
        """
import wandb
run = wandb.init()
model = nn.Linear(4, 1)
wandb.watch(model, log_freq=1)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, run.log)
print(len(run._session.run._collectors))
run.finish()
""",
    )
    assert (tmp_path / "stdout").read_text().strip() == "1"
    assert [step for step, _ in series(path)["gradients/weight"]] == [0, 2]
    code = "import torch; from torch.optim.optimizer import _global_optimizer_pre_hooks as h; print(len(h))"
    (tmp_path / "tracker.yaml").unlink()
    assert python(tmp_path, *LAUNCH, "-c", code).stdout.strip() == "0"


def test_training_is_bitwise_the_same(tmp_path: Path) -> None:
    """Weights and the random state after training do not depend on the launcher."""
    text = """
import wandb, random
random.seed(5)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
with wandb.init(mode=MODE) as run:
    train(model, torch.optim.Adam(model.parameters()), 6, run.log)
print([p.sum().item() for p in model.parameters()], torch.rand(1).item(), random.random())
"""
    launched(tmp_path, text.replace("MODE", "None"))
    watched = (tmp_path / "stdout").read_text()
    (tmp_path / "script.py").write_text(HEAD + text.replace("MODE", "'disabled'"))
    assert python(tmp_path, *LAUNCH, "script.py").stdout == watched


@pytest.mark.slow
@pytest.mark.distributed
def test_under_torchrun_the_first_rank_writes_one_run(tmp_path: Path) -> None:
    """`torchrun -m tracker_bridge.launch script.py`: one run with global norms."""
    (tmp_path / "tracker.yaml").write_text(CONFIG)
    (tmp_path / "script.py").write_text(
        HEAD
        + """
import os, wandb
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = wandb.init(project="p") if rank == 0 else None
train(model, optimizer, 3, run.log if run else None)
if run:
    run.finish()
torch.distributed.destroy_process_group()
"""
    )
    done = python(
        tmp_path,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *LAUNCH),
        *("--config", "tracker.yaml", "script.py"),
        TRACKER_BRIDGE_BACKENDS="",
        OMP_NUM_THREADS="1",
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    (run,) = find_runs(tmp_path / "tracker_bridge_runs")
    found = series(tmp_path / f"{run.root.name}.jsonl")
    assert [step for step, _ in found["gradients/weight"]] == [0, 2]
    assert [step for step, _ in found["loss"]] == [0, 1, 2]
