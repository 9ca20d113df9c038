"""The migration guide: every `sh` block of each page is run, in order, on what the real tracker wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import scripts
from tests.importers import test_mlflow, test_neptune_db, test_neptune_export, test_wandb
from tests.importers.test_tensorboard import VERSION, scalar, write_events
from tracker_bridge.reader import read

PAGES = Path(__file__).parents[2] / "examples" / "migrating"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def neptune(folder: Path) -> None:
    made = test_neptune_db.write(folder, "close")
    (made / ".neptune").rename(folder / ".neptune")
    (made / "model.txt").rename(folder / "model.txt")
    pytest.importorskip("pyarrow")
    test_neptune_export.full(folder / "exports")


def wandb(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    made = test_wandb.write(elsewhere, "finish")
    (made / "wandb").rename(folder / "wandb")
    (made / "weights.txt").rename(folder / "weights.txt")


def mlflow(folder: Path) -> None:
    test_mlflow.write(folder, "sqlite:///mlflow.db")


def tensorboard(folder: Path) -> None:
    for name in ("a", "b"):
        write_events(folder / "runs" / name, [VERSION, *(scalar("loss", step, step / 2) for step in range(5))])


WRITERS: dict[str, tuple[Callable[[Path], None], int]] = {
    "neptune": (neptune, 2),
    "wandb": (wandb, 1),
    "mlflow": (mlflow, 3),
    "tensorboard": (tensorboard, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("page", WRITERS)
def test_the_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    """Copied from the page into a shell, the commands move all the runs, and print no error."""
    writer, runs = WRITERS[page]
    writer(tmp_path)
    blocks = BLOCK.findall((PAGES / f"{page}.md").read_text())
    assert len(blocks) >= 2
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for block in blocks:
        script = "set -euo pipefail\n" + block
        env = scripts.environment(PATH=path, HOME=str(tmp_path))
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False
        )
        # Only `status` may say by its exit code that something is still to be sent.
        assert done.returncode == 0, block + done.stdout + done.stderr
        assert "error" not in done.stderr, done.stderr
    moved = sorted((tmp_path / "tracker_bridge_runs").iterdir())
    assert len(moved) == runs
    for run in moved:
        reader = read(run)
        assert reader.status in ("finished", "failed", "killed", "crashed")


def test_every_page_is_run_and_linked() -> None:
    """A page that is added without its commands being run here is noticed."""
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert pages == set(WRITERS)
    readme = (PAGES / "README.md").read_text()
    assert all(f"({page}.md)" in readme for page in pages)
