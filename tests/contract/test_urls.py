"""`run.urls`: what a real MLflow server and a real TensorBoard show at the addresses that a run gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient

from tests import scripts
from tests.servers import TensorBoardServer, get, mlflow_server, tensorboard_server
from tests.waiting import until

__all__ = ["mlflow_server", "tensorboard_server"]

RANK = """
import json, os
import tracker_bridge as bridge

with bridge.init("tracker.yaml", run_id="job", name="a job", experiment="sweep") as run:
    for step in range(5):
        run.log_metrics({"loss": 10 * int(os.environ["RANK"]) + step}, step=step)
    opened = run.wait_until_open(60)
delivery = run.close()
closed = {name: backend.url for name, backend in delivery.backends.items()}
print(json.dumps([opened, run.urls, closed]))
"""


def test_urls_lead_to_the_runs(tmp_path: Path, mlflow_server: str, tensorboard_server: TensorBoardServer) -> None:
    """Each rank's addresses are known once the backends are open and lead to its own points, in one experiment."""
    place = tensorboard_server.logdir / tmp_path.name
    backends = {"tensorboard": {"log_dir": str(place)}, "mlflow": {"tracking_uri": mlflow_server}}
    config = {"project": tmp_path.name, "ranks": "all", "backends": backends}
    (tmp_path / "tracker.yaml").write_text(json.dumps(config))
    ranks = [scripts.start(tmp_path, RANK, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    found = []
    for process in ranks:
        out, err = process.communicate(timeout=110)
        assert process.returncode == 0, err
        opened, urls, closed = json.loads(out)
        assert opened == urls == closed
        assert set(urls) == {"tensorboard", "mlflow"}
        found.append(urls)

    client = MlflowClient(mlflow_server)
    experiments = []
    for rank, urls in enumerate(found):
        page = re.fullmatch(re.escape(mlflow_server) + r"/#/experiments/(\d+)/runs/([0-9a-f]{32})", urls["mlflow"])
        assert page is not None, urls["mlflow"]
        assert b"<html" in get(urls["mlflow"].partition("#")[0]).lower()
        run = client.get_run(page[2])
        assert (run.info.experiment_id, run.info.status) == (page[1], "FINISHED")
        history = client.get_metric_history(page[2], "loss")
        assert [(point.step, point.value) for point in history] == [(step, 10 * rank + step) for step in range(5)]
        experiments.append(page[1])

        folder = Path(unquote(urlsplit(urls["tensorboard"]).path))
        name = str(folder.relative_to(tensorboard_server.logdir))
        until(lambda name=name: name in tensorboard_server.data("runs"), 30, f"tensorboard shows {name}")
        points = tensorboard_server.data("plugin/scalars/scalars", run=name, tag="loss")
        assert [(step, value) for _, step, value in points] == [(step, 10 * rank + step) for step in range(5)]
    assert experiments[0] == experiments[1]
    assert client.get_experiment(experiments[0]).name == f"{tmp_path.name}/sweep"
    assert found[0]["mlflow"] != found[1]["mlflow"]
    assert found[0]["tensorboard"] != found[1]["tensorboard"]
