"""Values that are still on their way when they are logged: from other processes of a sum, from a device that fails."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
import torch

import tracker_bridge as bridge
from tests import scripts
from tracker_bridge.journal import Entry, scan
from tracker_bridge.records import AnyRecord, Metrics, NormVector

SHARDED = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
import tracker_bridge as bridge

rank, how = int(sys.argv[1]), sys.argv[2]
os.environ["RANK"] = str(rank)
os.environ["WORLD_SIZE"] = "2"
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r")
run.watch(model, optimizer)

def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        if step == 2 and rank == 0 and how == "ends early":
            until = time.monotonic() + 2
            while Path(f"/proc/{Path('pid').read_text()}/cmdline").exists() and time.monotonic() < until:
                time.sleep(0.02)
        if step == 2 and rank == 1 and how == "stands still":
            while not os.path.exists("done"):
                time.sleep(0.02)
            os._exit(0)
        optimizer.step()
        run.log_metrics({"x": float(step)}, step=step)

if rank == 1:
    Path("pid").write_text(str(os.getpid()))
dist.barrier()
train(3)
if rank == 1 and how == "ends early":
    dist.destroy_process_group()
    sys.exit()
begun = time.monotonic()
delivery = run.close(timeout=2.0 if how == "stands still" else 60.0)
if rank == 0:
    print(time.monotonic() - begun)
    Path("done").touch()
if how == "stands still":
    os._exit(0)
dist.destroy_process_group()
"""


def records(folder: Path, kind: type[AnyRecord]) -> list[AnyRecord]:
    journal = folder / "tracker_bridge_runs" / "r" / "journal"
    return [item.record for item in scan(journal) if isinstance(item, Entry) and isinstance(item.record, kind)]


def both_ranks(folder: Path, how: str) -> tuple[str, str]:
    """What rank 0 of two printed."""
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in (0, 1):
            started.append(scripts.start(folder, SHARDED, str(rank), how, GLOO_SOCKET_IFNAME="lo"))
        out, err = started[0].communicate(timeout=100)
        assert started[1].wait(60) == 0
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert started[0].returncode == 0, err
    return out, err


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_sums_over_processes_are_recorded_in_order_and_none_is_missing(tmp_path: Path) -> None:
    """Each step's sum goes on while training does; all are there after `close`, step by step."""
    both_ranks(tmp_path, "goes on")
    norms = [record for record in records(tmp_path, NormVector) if isinstance(record, NormVector)]
    assert [record.step for record in norms] == [0, 1, 2]
    assert all(record.total and record.total > 0 for record in norms)


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_a_rank_that_stands_still_holds_up_no_other_ones_logging_nor_close(tmp_path: Path) -> None:
    """Rank 1 never comes to the sum of step 2 (naive: the step of rank 0 waits for it, for half an hour)."""
    out, err = both_ranks(tmp_path, "stands still")
    assert float(out) < 3.0 + 1.0  # `close` returns within its timeout and a second, and some for a loaded machine
    assert scripts.statuses(tmp_path / "out.jsonl") == ["finished"]  # there was time left for delivery
    assert "it was still on a device, or in a sum over processes, when the run was closed" in err
    assert [record.step for record in records(tmp_path, NormVector) if isinstance(record, NormVector)] == [0, 1]
    assert [record.step for record in records(tmp_path, Metrics) if isinstance(record, Metrics)] == [0, 1, 2]


class Broken:
    """What a device that has failed says to every question."""

    def is_ready(self) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def record(self) -> AnyRecord:
        raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_a_rank_that_ends_early_without_close_takes_part_in_the_last_sum(tmp_path: Path) -> None:
    """It has nothing to write, destroys its group and ends two seconds before rank 0 (naive: step 2 is lost)."""
    both_ranks(tmp_path, "ends early")
    assert [record.step for record in records(tmp_path, NormVector) if isinstance(record, NormVector)] == [0, 1, 2]


class Late:
    """A record that is on its way until it is told to have arrived."""

    arrived = False

    def is_ready(self) -> bool:
        return self.arrived

    def record(self) -> AnyRecord:
        return Metrics(0, 0, {"late": 1.0})


def test_norms_that_are_ready_wait_for_what_was_logged_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, also where the next step's sum is there at once (naive: step 1 is recorded before step 0)."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with bridge.init(backends="none", run_id="r") as run:
        run.watch(model, optimizer)
        late = Late()
        run._pending.add(late)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert records(tmp_path, NormVector) == []
        late.arrived = True
    found = [
        item.record for item in scan(tmp_path / "tracker_bridge_runs" / "r" / "journal") if isinstance(item, Entry)
    ]
    kept = [type(record) for record in found if isinstance(record, (Metrics, NormVector))]
    assert kept == [Metrics, NormVector, NormVector]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_what_is_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the parent's (naive: the child's `close` takes its whole timeout, tells of a loss, finds a lock held)."""
    monkeypatch.chdir(tmp_path)
    with bridge.init(backends="none", run_id="r") as run:
        late = Late()
        run._pending.add(late)
        held, free = threading.Event(), threading.Event()

        def look() -> None:
            with run._pending._lock:
                held.set()
                free.wait(60)

        looker = threading.Thread(target=look)
        looker.start()
        held.wait(60)
        child = os.fork()
        if child == 0:
            assert not run._pending.waits
            run.close(timeout=600)
            os._exit(len(run._not_written()))
        free.set()
        looker.join()
        assert os.waitpid(child, 0)[1] == 0
        late.arrived = True
    assert len(records(tmp_path, Metrics)) == 1


def test_a_device_that_fails_costs_its_records_and_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read is counted and told once; what comes after it is kept (naive: `log_metrics` raises)."""
    monkeypatch.chdir(tmp_path)
    with bridge.init(backends="none", run_id="r") as run:
        for step in range(2):
            run._pending.add(Broken())
            run.log_metrics({"x": float(step)}, step=step)
    assert [record.step for record in records(tmp_path, Metrics) if isinstance(record, Metrics)] == [0, 1]
    assert run._not_written() == {"RuntimeError": 2}
    assert capfd.readouterr().err.count("device-side assert") == 1
