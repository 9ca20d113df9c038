"""MLflow's pages ask these addresses for a run's numbers; they must work whatever was logged."""

from __future__ import annotations

import json
import math
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tracker_bridge_mlflow import MlflowAdapter, MlflowOptions

from tests.servers import MLFLOW_QUIET, get, mlflow_server
from tracker_bridge.records import Metrics, Params, RunFinished
from tracker_bridge.testing import Trial

__all__ = ["mlflow_server"]

BEGIN = 1_750_000_000_000_000_000


def test_pages_work_with_values_that_are_not_finite(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run list, the run and its charts answer, with finite numbers only where finite numbers were logged."""
    for name, value in MLFLOW_QUIET.items():
        monkeypatch.setenv(name, value)
    options = MlflowOptions(tracking_uri=mlflow_server, experiment_name=f"pages-{time.time_ns()}")
    trial = Trial(tmp_path, lambda: MlflowAdapter(options))
    odd = (1.0, math.nan, math.inf, -math.inf, 5.0, math.inf)
    trial.append(
        Params(BEGIN, {"nan": math.nan, "inf": -math.inf}),
        *(Metrics(BEGIN + step, step, {"loss": value}) for step, value in enumerate(odd)),
        RunFinished(BEGIN + 9, "failed"),
    )
    trial.deliver()
    run_id, experiment = trial.ids["run_id"], trial.ids["experiment_id"]
    (found,) = post(mlflow_server, "runs/search", {"experiment_ids": [experiment], "order_by": ["metrics.loss"]})[
        "runs"
    ]
    latest = {metric["key"]: metric["value"] for metric in found["data"]["metrics"]}
    assert latest == {"loss": 5.0, "loss/non_finite": 2.0}
    assert {param["key"]: param["value"] for param in found["data"]["params"]} == {"nan": "nan", "inf": "-inf"}
    query = urllib.parse.urlencode({"run_ids": run_id, "metric_key": "loss", "max_results": 100})
    chart = json.loads(get(f"{mlflow_server}/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{query}"))
    points = [(metric.get("step", 0), str(metric["value"])) for metric in chart["metrics"]]
    assert [(int(step), value.lower()) for step, value in points] == [(0, "1.0"), (1, "nan"), (4, "5.0")]


def post(server: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{server}/ajax-api/2.0/mlflow/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())
