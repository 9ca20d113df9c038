"""Real scripts that log to all trackers at once: each has what was logged, as far as it can hold it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.contract import everywhere
from tests.servers import mlflow_sqlite, mlflow_template
from tracker_bridge.testing import StoredRun

__all__ = ["mlflow_sqlite", "mlflow_template"]

pytest.importorskip("wandb")
pytest.importorskip("neptune_scale")

MIB3 = 3 * 1024 * 1024


def pairs(stored: StoredRun, name: str) -> list[tuple[float, float]]:
    return [(point.step, point.value) for point in stored.metrics[name]]


THREADS = """
import threading
import tracker_bridge as bridge

def worker(number):
    for step in range(50):
        run.log_metrics({f"thread/{number}": step, "shared": number}, step=step)

with bridge.init("tracker.yaml", run_id="r") as run:
    threads = [threading.Thread(target=worker, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for step in range(200):
        run.log_metrics({"train/loss": step}, step=step)
        if step % 20 == 19:
            run.log_metrics({"eval/accuracy": step}, step=step // 20)
    for thread in threads:
        thread.join()
"""


def test_many_threads_and_step_domains(tmp_path: Path, mlflow_sqlite: str) -> None:
    """Eight threads that log the same steps, and an evaluation with steps of its own: no series loses a point."""
    everywhere.configure(tmp_path, mlflow_sqlite)
    everywhere.run(tmp_path, THREADS)
    stored = everywhere.read(tmp_path, "r", mlflow_sqlite)
    dropped = everywhere.dropped(tmp_path, "r")
    for kind, run in stored.items():
        for number in range(8):
            assert pairs(run, f"thread/{number}") == [(step, step) for step in range(50)], kind
        assert pairs(run, "train/loss") == [(step, step) for step in range(200)], kind
        assert pairs(run, "eval/accuracy") == [(step, 20 * step + 19) for step in range(10)], kind
        every = sorted((step, number) for step in range(50) for number in range(8))
        if kind == "neptune":
            kept = [step for step, _ in pairs(run, "shared")]
            assert kept == sorted(set(kept))
            assert dropped[kind] == {"step_not_increasing": 400 - len(kept)}
        else:
            assert sorted(pairs(run, "shared")) == every, kind
            assert dropped[kind] == {}


VALUES = """
import math, sys
import tracker_bridge as bridge

LOW, HIGH = (0, 10**12 - 1) if sys.argv[1] == "neptune" else (-2**63, 2**63 - 1)
with bridge.init("tracker.yaml", run_id="r", backends=sys.argv[1]) as run:
    run.log_params({"nine": "9" * 9_000, "three": "0123456789abcdef" * 196_608, "short": 1})
    run.add_tags(["kept", "kept", "gone", "long" * 100 + "a", "long" * 100 + "b"])
    run.add_tags({"key": "v" * 6_000})
    run.remove_tags(["gone"])
    for step, value in ((LOW, 1.0), (1, math.nan), (2, math.inf), (3, -math.inf), (HIGH, 2.0)):
        run.log_metrics({"v": value}, step=step)
    run.log_metrics({f"m/{number:04}": number for number in range(2_500)}, step=7)
print(run.close())
"""


@pytest.mark.parametrize("kind", everywhere.KINDS)
def test_sizes_and_extremes(tmp_path: Path, mlflow_sqlite: str, kind: str) -> None:
    """Params of 9,000 characters and 3 MiB, tags too long or removed, extreme steps, 2,500 metrics at once."""
    everywhere.configure(tmp_path, mlflow_sqlite)
    everywhere.run(tmp_path, VALUES, kind)
    stored = everywhere.read(tmp_path, "r", mlflow_sqlite, (kind,))[kind]
    assert everywhere.dropped(tmp_path, "r", (kind,)) == {kind: {}}
    whole = {**stored.params, **(stored.full_params or {})}
    assert (whole["nine"], str(whole["short"])) == ("9" * 9_000, "1")
    assert whole["three"] == "0123456789abcdef" * 196_608
    assert len(whole["three"]) == MIB3
    long = [tag for tag in stored.tags if tag.startswith("longlong")]
    assert len(long) == 2
    assert {"kept", "key"} <= stored.tags.keys()
    assert "gone" not in stored.tags
    low, high = (0, 10**12 - 1) if kind == "neptune" else (-(2**63), 2**63 - 1)
    points = pairs(stored, "v")
    assert [points[0], points[-1]] == [(low, 1.0), (high, 2.0)]
    odd = points[1:-1] + (pairs(stored, "v/non_finite") if kind == "mlflow" else [])
    shown = [(step, repr(value)) for step, value in odd]
    infinities = [(2, "2.0"), (3, "3.0")] if kind == "mlflow" else [(2, "inf"), (3, "-inf")]
    assert shown == [(1, "nan"), *infinities]
    assert all(pairs(stored, f"m/{number:04}") == [(7, number)] for number in range(2_500))


RESUMED = """
import sys
import tracker_bridge as bridge

first = int(sys.argv[1])
with bridge.init("tracker.yaml", run_id="r", params={"lr": 0.1}, resume=True, dir=sys.argv[2]) as run:
    for step in range(first, first + 5):
        run.log_metrics({"loss": step}, step=step)
"""


@pytest.mark.parametrize("queue", ["kept", "lost"])
def test_a_run_that_goes_on_is_one_run_everywhere(tmp_path: Path, mlflow_sqlite: str, queue: str) -> None:
    """With its queue directory, or re-queued on a machine that has only the `run_id`: each tracker has one run."""
    everywhere.configure(tmp_path, mlflow_sqlite)
    folders = ["tracker_bridge_runs", "tracker_bridge_runs" if queue == "kept" else "elsewhere"]
    for number, folder in enumerate(folders):
        everywhere.run(tmp_path, RESUMED, str(5 * number), folder)
    for kind, run in everywhere.read(tmp_path, "r", mlflow_sqlite).items():
        assert run.runs == 1, kind
        assert pairs(run, "loss") == [(step, step) for step in range(10)], kind
    if queue == "lost":
        again = json.loads((tmp_path / "elsewhere" / "r" / "run.json").read_text())["backends"]
        assert {kind: entry["ids"] for kind, entry in again.items()} == everywhere.identities(tmp_path, "r")


WATCHED = """
import torch
import tracker_bridge as bridge

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with bridge.init("tracker.yaml", run_id="r") as run:
    run.watch(net, optimizer)
    for step in range(30):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        run.log_metrics({"loss": step, "debug/x": step}, step=step)
"""


def test_routes_differ_by_backend_on_one_journal(tmp_path: Path, mlflow_sqlite: str) -> None:
    """One tracker gets every parameter at every step, another blocks every ten steps under names of its own."""
    everywhere.configure(
        tmp_path,
        mlflow_sqlite,
        mlflow={"every_n_steps": 10, "group_by": "block", "exclude": ["debug/*"], "prefix": "bert/"},
        wandb={"include": ["loss", "gradients/total_norm"], "rename": {"loss": "train/loss"}},
        neptune={"group_by": "total", "include": ["re:gradients/total.*"]},
    )
    everywhere.run(tmp_path, WATCHED)
    stored = everywhere.read(tmp_path, "r", mlflow_sqlite)
    parameters = {f"gradients/layers.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")}
    blocks = {f"bert/gradients/layers.{layer}" for layer in range(3)}
    assert parameters | {"loss", "debug/x", "gradients/total_norm"} <= stored["tensorboard"].metrics.keys()
    assert {len(stored["tensorboard"].metrics[name]) for name in parameters} == {30}
    assert [step for step, _ in pairs(stored["mlflow"], "bert/gradients/layers.0")] == [0, 10, 20]
    assert blocks == {name for name in stored["mlflow"].metrics if "layers." in name}
    assert len(stored["mlflow"].metrics["bert/loss"]) == 30
    assert not [name for name in stored["mlflow"].metrics if "debug" in name]
    assert set(stored["wandb"].metrics) == {"train/loss", "gradients/total_norm"}
    assert all(name.startswith("gradients/total") for name in stored["neptune"].metrics)
    total = dict(pairs(stored["jsonl"], "gradients/total_norm"))
    blockwise = [dict(pairs(stored["mlflow"], name))[10] for name in sorted(blocks)]
    assert math.hypot(*blockwise) == pytest.approx(total[10], rel=1e-6)


PROVENANCE = """
import tracker_bridge as bridge

print("a line on the console")
with bridge.init("tracker.yaml", run_id="r") as run:
    run.log_metrics({"loss": 1.0}, step=0)
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_provenance_is_the_scripts_and_holds_no_credentials(tmp_path: Path, mlflow_sqlite: str) -> None:
    """Each tracker names the script, its commit and its user; nowhere is the remote's password or a console line."""
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    (git / "config").write_text('[remote "origin"]\n\turl = https://someone:hunter2@example.org/team/repo.git\n')
    everywhere.configure(tmp_path, mlflow_sqlite)
    everywhere.run(tmp_path, PROVENANCE, "--lr", "0.1")
    stored = everywhere.read(tmp_path, "r", mlflow_sqlite)
    script = str(tmp_path / "script.py")
    for kind in ("tensorboard", "mlflow", "wandb", "neptune"):
        context = stored[kind].context
        assert (context["script"], context["git_commit"]) == (script, COMMIT), kind
        assert context["user"], kind
    written = [path for path in tmp_path.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert len(written) > 20
    for path in written:
        content = path.read_bytes()
        assert b"hunter2" not in content, path
        assert path.name == "script.py" or b"a line on the console" not in content, path
    assert any(b"example.org/team/repo.git" in path.read_bytes() for path in written)
