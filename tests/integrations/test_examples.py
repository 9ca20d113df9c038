"""The scripts of `examples/frameworks`, run as a user would."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tracker_bridge as bridge
from tests import scripts

EXAMPLES = scripts.REPOSITORY / "examples" / "frameworks"


def run(folder: Path, name: str, *arguments: str) -> list[bridge.RunReader]:
    """Run the example in `folder`; its runs, oldest first."""
    for path in EXAMPLES.glob(f"{Path(name).stem}.*"):
        shutil.copy(path, folder)
    done = subprocess.run(
        [sys.executable, name, *arguments],
        cwd=folder,
        env=scripts.environment(OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [bridge.read(path.parent) for path in sorted(folder.rglob("run.json"))]


@pytest.mark.parametrize(
    ("name", "loss"),
    [("transformers_trainer.py", "train/loss"), ("lightning_fit.py", "loss"), ("accelerate_loop.py", "loss")],
)
def test_the_framework_examples_record_a_run(tmp_path: Path, name: str, loss: str) -> None:
    """One finished run with the losses, and norms at every fifth step."""
    (found,) = run(tmp_path, name)
    assert found.status == "finished"
    assert len(found.metrics()[loss][0])
    steps = found.gradient_norms().steps
    assert len(steps) > 1
    assert not (steps % 5).any()


def test_the_trainer_example_resumes_its_run(tmp_path: Path) -> None:
    """With `--resume` the second process goes on in the first one's run."""
    (first,) = run(tmp_path, "transformers_trainer.py")
    (second,) = run(tmp_path, "transformers_trainer.py", "--resume")
    assert second.run_id == first.run_id
    assert second.gradient_norms().steps.tolist() == [5, 10, 15, 20, 25, 30, 35, 40]


def test_the_hydra_example_makes_a_run_of_each_job(tmp_path: Path) -> None:
    """Two jobs, two runs."""
    found = run(tmp_path, "hydra_multirun.py", "--multirun", "lr=0.05,0.01")
    assert {one.params["lr"] for one in found} == {0.05, 0.01}


def test_the_mirror_and_attach_example(tmp_path: Path) -> None:
    """The mirrored run holds the script's losses, both hold the norms."""
    found = run(tmp_path, "mirror_and_attach.py")
    assert sorted(len(one.metrics().get("loss", ([],))[0]) for one in found) == [0, 50]
    assert [len(one.gradient_norms()) for one in found] == [50, 50]
