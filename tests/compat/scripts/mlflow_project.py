"""An experiment class over the client, a worker thread with a run of its own, params that must not change."""

import threading
import time

import mlflow
import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException


class Tracker:
    def __init__(self, name: str) -> None:
        known = mlflow.get_experiment_by_name(name)
        self.experiment_id = mlflow.create_experiment(name) if known is None else known.experiment_id
        self.client = MlflowClient()

    def batch(self, run_id: str, step: int, values: dict) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(
            run_id,
            metrics=[Metric(key, float(value), now, step) for key, value in values.items()],
            params=[Param("seed", "5")] if step == 0 else [],
            tags=[RunTag("stage", "warm")] if step == 0 else [],
        )


def work(tracker: Tracker, seed: int, results: dict) -> None:
    random = np.random.default_rng(seed)
    with mlflow.start_run(experiment_id=tracker.experiment_id, run_name=f"worker-{seed}") as run:
        for step in range(4):
            mlflow.log_metric("sample", float(random.normal()), step=step)
        results[seed] = run.info.run_id


def main() -> None:
    tracker = Tracker("project/main")
    with mlflow.start_run(experiment_id=tracker.experiment_id, run_name="main", description="the main run") as run:
        run_id = run.info.run_id
        random = np.random.default_rng(5)
        for step in range(6):
            tracker.batch(run_id, step, {"train/loss": random.random() / (step + 1), "train/acc": random.random()})
        mlflow.log_param("lr", 0.1)
        try:
            mlflow.log_param("lr", 0.2)
        except MlflowException as error:
            print("refused", error.error_code)
        results = {}
        threads = [threading.Thread(target=work, args=(tracker, seed, results)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
            thread.join()
        assert mlflow.active_run().info.run_id == run_id
        mlflow.log_image(np.zeros((4, 4, 3), dtype=np.uint8), "blank.png")
        mlflow.log_table({"step": [0, 1], "value": [0.5, 0.25]}, "table.json")
    print(len(set(results.values()) | {run_id}), mlflow.get_run(run_id).data.params["lr"])
    try:
        with mlflow.start_run(experiment_id=tracker.experiment_id, run_name="broken"):
            mlflow.log_metric("before", 1.5)
            raise ValueError("on purpose")
    except ValueError as error:
        print(error, mlflow.last_active_run().info.status)


if __name__ == "__main__":
    main()
