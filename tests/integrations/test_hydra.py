"""Hydra: a job's `DictConfig` as the configuration, and a multirun whose jobs are runs of their own."""

from __future__ import annotations

from pathlib import Path

import tracker_bridge as bridge
from tests import scripts


def test_each_job_of_a_multirun_is_a_run_with_its_own_params(tmp_path: Path) -> None:
    """Two jobs in one process: two finished runs in the same queue directory, with the overridden values."""
    (tmp_path / "config.yaml").write_text(
        "lr: 0.1\nsteps: 3\ntracker: {project: hydra, backends: {}, queue: {dir: runs}}\n"
    )
    done = scripts.run(
        tmp_path,
        """
import hydra
import tracker_bridge as bridge

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config):
    with bridge.init(config.tracker, params=config) as run:
        for step in range(config.steps):
            run.log_metrics({"loss": config.lr * step}, step=step)

main()
""",
        "--multirun",
        "lr=0.5,0.25",
        "hydra.sweep.dir=sweep",
    )
    assert done.returncode == 0, done.stderr
    runs = [bridge.read(path.parent) for path in tmp_path.rglob("run.json")]
    found = {run.params["lr"]: run.metrics()["loss"][1].tolist() for run in runs}
    assert found == {0.5: [0.0, 0.5, 1.0], 0.25: [0.0, 0.25, 0.5]}
    assert {run.status for run in runs} == {"finished"}
