"""Several runs of a sweep by hand, custom axes, rows in parts, artifacts, files, a config that must not change."""

import argparse
import math
import os
import sys

import wandb
from wandb.errors import UsageError
from wandb.sdk.wandb_run import Run


class Logger:
    def __init__(self, args: argparse.Namespace, lr: float) -> None:
        self.run: Run = wandb.init(
            project=args.project,
            group="sweep",
            job_type="train",
            name=f"lr-{lr}",
            config=args,
            reinit=True,
            settings=wandb.Settings(console="off"),
        )
        self.run.config.update({"lr": lr, "model": {"depth": 2, "act": "relu"}}, allow_val_change=True)
        self.run.define_metric("epoch")
        self.run.define_metric("val/*", step_metric="epoch")

    def batch(self, number: int, **values: float) -> None:
        self.run.log({f"train/{name}": value for name, value in values.items()}, commit=False)
        self.run.log({"train/batch": number})

    def epoch(self, number: int, **values: float) -> None:
        self.run.log({"epoch": number, **{f"val/{name}": value for name, value in values.items()}})

    def close(self, path: str) -> None:
        artifact = wandb.Artifact("weights", type="model", metadata={"format": "txt"})
        artifact.add_file(path)
        self.run.log_artifact(artifact)
        self.run.finish()


def fit(args: argparse.Namespace, lr: float) -> float:
    logger = Logger(args, lr)
    assert wandb.run is logger.run
    weight, number, loss = 4.0, 0, math.inf
    for epoch in range(args.epochs):
        for _ in range(args.batches):
            loss = weight**2
            gradient = 2 * weight
            weight -= lr * gradient
            logger.batch(number, loss=loss, grad_norm=abs(gradient))
            number += 1
        logger.epoch(epoch, loss=weight**2, weight=weight)
    try:
        logger.run.config.lr = 100.0
    except Exception as error:
        print(type(error).__name__)
    logger.run.summary["best_loss"] = loss
    path = os.path.join(args.out, f"weights-{lr}.txt")
    with open(path, "w") as file:
        file.write(repr(weight))
    logger.close(path)
    return loss


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", default="project")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--out", default="weights")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for lr in (0.1, 0.3):
        print(lr, fit(args, lr))
    try:
        wandb.log({"orphan": 1})
    except (wandb.Error, UsageError) as error:
        print(type(error).__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
