"""Ray Train: two workers on a real local Ray cluster are one run, with the norms of the whole batch."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import tracker_bridge as bridge
from tests import scripts

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    pytest.mark.slow,
    pytest.mark.distributed,
]


@pytest.mark.timeout(300)
def test_two_workers_are_one_run(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The first worker writes; each recorded norm is that of the gradient averaged over both workers."""
    # The path of a socket has at most 107 characters: Ray's own files do not fit below tmp_path.
    short = tempfile.mkdtemp(prefix="ray-")
    request.addfinalizer(lambda: shutil.rmtree(short, ignore_errors=True))
    done = scripts.run(
        tmp_path,
        """
import os, sys, torch
import ray, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

HERE = os.getcwd()

def train(config):
    import tracker_bridge as bridge
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rank = ray.train.get_context().get_world_rank()
    with bridge.init({"backends": {}}, dir=config["runs"], run_id="ray") as run:
        run.watch(model, optimizer)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 3), float(rank + 1))).sum().backward()
            optimizer.step()
            run.log_metrics({"rank": rank}, step=step)

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, _temp_dir=sys.argv[1])
    TorchTrainer(
        train,
        train_loop_config={"runs": HERE + "/runs"},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=HERE + "/ray", name="run"),
    ).fit()
    ray.shutdown()
""",
        short,
        timeout=280,
        RAY_USAGE_STATS_ENABLED="0",
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run = bridge.read(tmp_path / "runs" / "ray")
    norms = run.gradient_norms()
    assert list(norms.steps) == [0, 1, 2]
    weight = norms.values[:, norms.names.index("weight")]
    np.testing.assert_allclose(weight, np.full(3, np.sqrt(3) * 3.0), rtol=1e-6)
    assert run.metrics()["rank"][1].tolist() == [0, 0, 0]
    assert run.status == "finished"
