"""The stand-in for mlflow: runs by thread, nested, continued; params that do not change; artifacts; reported no-ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import scripts
from tracker_bridge.rundir import find_runs, load_manifest

HEAD = "import json, os, sys, threading\nfrom tracker_bridge.compat import mlflow\n"


def run_script(folder: Path, text: str, code: int = 0, **more: str) -> dict[str, Path]:
    """Run a script with a `jsonl` file for each run; name of the run -> its file."""
    done = scripts.run(folder, HEAD + text, TRACKER_BRIDGE_BACKENDS="jsonl", **more)
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    assert done.returncode == code, done.stderr
    runs = {load_manifest(run).name or run.root.name: run for run in find_runs(folder / "tracker_bridge_runs")}
    return {name: folder / f"{run.root.name}.jsonl" for name, run in runs.items()}


def found(path: Path, kind: str) -> list[Any]:
    return [line[kind] for line in scripts.lines(path) if kind in line]


def test_metrics_params_tags_and_artifacts_arrive(tmp_path: Path) -> None:
    """Everything of the fluent API that logs, with MLflow's return values and refusals."""
    runs = run_script(
        tmp_path,
        """
import numpy as np
experiment = mlflow.set_experiment("exp/one")
print(mlflow.get_experiment_by_name("exp/one") == experiment, mlflow.get_experiment_by_name("other"))
with mlflow.start_run(run_name="r", tags={"version": 2}, description="what it is") as run:
    print(mlflow.log_param("lr", 0.1), mlflow.log_metric("m", 1.5, step=3, timestamp=1700000000000))
    mlflow.log_params({"depth": 2, "lr": 0.1})
    mlflow.log_metrics({"a": 1, "b": True}, step=4)
    mlflow.log_metric("no_step", 1); mlflow.log_metric("no_step", 2)
    mlflow.log_metric("late", 1, synchronous=False).wait()
    mlflow.set_tags({"k": "v"}); mlflow.set_tag("gone", 1); mlflow.delete_tag("gone")
    open("f.txt", "w").write("file"); os.makedirs("d/e"); open("d/e/g.txt", "w").write("inner")
    mlflow.log_artifact("f.txt", "docs"); mlflow.log_artifacts("d", "tree")
    mlflow.log_text("hello", "notes/a.txt"); mlflow.log_dict({"x": [1]}, "x.json"); mlflow.log_dict({"x": 1}, "x.yaml")
    mlflow.log_image(np.zeros((2, 2, 3), np.uint8), "blank.png"); mlflow.log_image(np.zeros((2, 2)), key="k", step=5)
    mlflow.log_table({"a": [1, 2]}, "t.json"); mlflow.autolog(); mlflow.sklearn.autolog()
    mlflow.log_input(mlflow.data.from_numpy(1))
    for call in (lambda: mlflow.log_param("lr", 0.2), lambda: mlflow.log_metric("m", "x"),
                 lambda: mlflow.delete_tag("no"), lambda: mlflow.log_artifact("missing")):
        try:
            call()
        except mlflow.MlflowException as error:
            print(error.error_code)
    print(mlflow.get_artifact_uri("a").startswith("file://"))
data = mlflow.get_run(run.info.run_id).data
print(json.dumps(data.to_dictionary(), sort_keys=True))
for name in ("search_runs", "register_model", "evaluate"):
    try:
        getattr(mlflow, name)()
    except NotImplementedError:
        print(name)
""",
    )
    path = runs["r"]
    out = (tmp_path / "stdout").read_text().splitlines()
    assert out[:2] == ["True None", "0.1 None"]
    refused = "INVALID_PARAMETER_VALUE"
    assert out[2:6] == [refused, refused, "RESOURCE_DOES_NOT_EXIST", refused]
    assert out[6] == "True"
    data = json.loads(out[7])
    assert data["params"] == {"lr": "0.1", "depth": "2"}
    assert data["metrics"] == {"m": 1.5, "a": 1.0, "b": 1.0, "no_step": 2.0, "late": 1.0}
    assert data["tags"]["mlflow.runName"] == "r"
    assert out[8:] == ["search_runs", "register_model", "evaluate"]
    assert scripts.metrics(path, "no_step") == [(0, 1.0), (1, 2.0)]
    assert scripts.metrics(path, "m") == [(3, 1.5)]
    assert [line["time_ns"] for line in scripts.lines(path) if "m" in line.get("metrics", {})] == [17 * 10**17]
    assert found(path, "tags")[-1] == {"version": "2", "mlflow.note.content": "what it is", "k": "v"}
    files = {name: Path(file) for one in found(path, "artifact") for name, file in one.items()}
    assert set(files) == {
        "docs/f.txt",
        "tree/e/g.txt",
        "notes/a.txt",
        "x.json",
        "x.yaml",
        "blank.png",
        "images/k.png",
        "t.json",
    }
    assert json.loads(files["x.json"].read_text()) == {"x": [1]}
    assert files["x.yaml"].read_text() == "{x: 1}\n"
    (run,) = find_runs(tmp_path / "tracker_bridge_runs")
    assert load_manifest(run).project == "exp/one"
    coverage = json.loads((run.root / "coverage.json").read_text())
    assert {"autolog", "sklearn.autolog", "log_input"} <= set(coverage["not carried"])


def test_the_active_run_belongs_to_a_thread(tmp_path: Path) -> None:
    """A thread without a run begins its own; nested runs come back to their parent; a second start is refused."""
    runs = run_script(
        tmp_path,
        """
def work(number):
    with mlflow.start_run(run_name=f"worker{number}"):
        for step in range(20):
            mlflow.log_metric("x", number, step=step)
with mlflow.start_run(run_name="main") as main:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    [thread.start() for thread in threads]
    mlflow.log_metric("x", 9)
    with mlflow.start_run(run_name="child", nested=True) as child:
        mlflow.log_metric("x", 5)
        print(mlflow.get_parent_run(child.info.run_id).info.run_id == main.info.run_id)
    print(mlflow.active_run().info.run_id == main.info.run_id)
    [thread.join() for thread in threads]
    try:
        mlflow.start_run()
    except Exception as error:
        print(type(error) is Exception, main.info.run_id in str(error))
print(mlflow.active_run(), mlflow.last_active_run().info.run_name, mlflow.last_active_run().info.status)
with mlflow.start_run(run_id=main.info.run_id):
    mlflow.log_metric("again", 1)
mlflow.log_metric("auto", 1)
""",
    )
    assert set(runs) >= {"main", "worker0", "worker1", "child"}
    assert len(runs) == 5
    assert scripts.metrics(runs["main"], "x") == [(0, 9.0)]
    assert scripts.metrics(runs["main"], "again") == [(0, 1.0)]
    assert [value for _, value in scripts.metrics(runs["worker1"], "x")] == [1.0] * 20
    assert found(runs["child"], "tags")[0]["parent_run"] in str(runs["main"])
    assert (tmp_path / "stdout").read_text().splitlines() == ["True", "True", "True True", "None main FINISHED"]


def test_the_client_logs_by_id(tmp_path: Path) -> None:
    """Batches with their own times and steps, runs that no thread has active, an end with a state."""
    runs = run_script(
        tmp_path,
        """
from tracker_bridge.compat.mlflow.entities import Metric, Param, RunTag
client = mlflow.MlflowClient("http://127.0.0.1:1")
run = client.create_run(client.create_experiment("e"), run_name="by-id")
id = run.info.run_id
client.log_batch(id, [Metric("a", 1.0, 1700000000000, 0), Metric("b", 2.0, 1700000000000, 0), Metric("a", 3.0, 1, 1)],
                 [Param("p", "1")], [RunTag("t", "2")])
client.log_metric(id, "a", 4.0, step=2); client.log_text(id, "x", "x.txt"); client.set_terminated(id, "FAILED")
print(client.get_run(id).info.status, client.tracking_uri, mlflow.active_run())
try:
    client.search_runs(["0"])
except NotImplementedError as error:
    print(error)
""",
    )
    path = runs["by-id"]
    assert scripts.metrics(path, "a") == [(0, 1.0), (1, 3.0), (2, 4.0)]
    assert scripts.statuses(path) == ["failed"]
    out = (tmp_path / "stdout").read_text().splitlines()
    assert out[0] == "FAILED http://127.0.0.1:1 None"
    assert out[1].startswith("mlflow.MlflowClient.search_runs has no meaning here")


def test_an_exception_in_a_run_is_a_failed_run(tmp_path: Path) -> None:
    """In a `with` block and at the top, where MLflow itself would write FINISHED."""
    runs = run_script(
        tmp_path,
        """
try:
    with mlflow.start_run(run_name="block"):
        raise ValueError
except ValueError:
    print(mlflow.last_active_run().info.status)
mlflow.start_run(run_name="top")
mlflow.log_metric("a", 1)
raise RuntimeError("boom")
""",
        code=1,
    )
    assert (tmp_path / "stdout").read_text().strip() == "FAILED"
    assert [scripts.statuses(runs[name]) for name in ("block", "top")] == [["failed"], ["failed"]]
    assert "RuntimeError: boom" in (tmp_path / "stderr").read_text()
