"""A trainer of a larger project: dataclass config, logging handler, evaluation between steps, files, a failed try."""

import argparse
import logging
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
from neptune_scale import NeptuneLoggingHandler, Run
from neptune_scale.exceptions import NeptuneScaleError
from neptune_scale.types import File, Histogram

log = logging.getLogger("project")


@dataclass
class OptimizerConfig:
    name: str = "sgd"
    lr: float = 0.05
    momentum: float | None = None


@dataclass
class Config:
    seed: int = 7
    epochs: int = 2
    batches: int = 5
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    milestones: tuple = (1, 3)


class Trainer:
    def __init__(self, config: Config, run: Run, out: Path) -> None:
        self.config, self.run, self.out = config, run, out
        self.random = np.random.default_rng(config.seed)
        self.weights = self.random.normal(size=(16,))
        self.step = 0

    def batch(self) -> float:
        x = self.random.normal(size=(8, 16))
        error = x @ self.weights
        self.weights -= self.config.optimizer.lr * (x.T @ error) / 8
        return float((error**2).mean())

    def epoch(self, number: int) -> None:
        for _ in range(self.config.batches):
            loss = self.batch()
            self.run.log_metrics({"train/loss": loss, "train/lr": self.config.optimizer.lr}, step=self.step)
            if self.step % 4 == 3:
                for part in range(2):
                    at = self.step + 0.5 * part
                    self.run.log_metrics({"eval/score": float(np.abs(self.weights).mean()) + part}, step=at)
            self.step += 1
        counts, edges = np.histogram(self.weights, bins=8)
        self.run.log_histograms({"weights": Histogram(bin_edges=edges, counts=counts)}, step=self.step)
        self.run.log_string_series({"status": f"epoch {number} done"}, step=self.step)
        path = self.out / f"weights-{number}.txt"
        np.savetxt(path, self.weights)
        self.run.log_files({"checkpoints/weights": File(source=path, mime_type="text/plain")}, step=self.step)
        log.info("epoch %d: |w| = %.6f", number, np.abs(self.weights).sum())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    config = Config(epochs=args.epochs)
    out = Path(args.out)
    out.mkdir(exist_ok=True)
    errors = []
    with Run(
        experiment_name="project",
        enable_console_log_capture=False,
        source_tracking_config=None,
        on_error_callback=lambda error, at: errors.append(error),
    ) as run:
        handler = NeptuneLoggingHandler(run=run, level=logging.INFO, attribute_path="logs/project")
        log.setLevel(logging.INFO)
        log.addHandler(handler)
        log.addHandler(logging.StreamHandler(sys.stdout))
        log.propagate = False
        run.log_configs(asdict(config), flatten=True, cast_unsupported=True)
        run.log_configs({"started": datetime(2026, 1, 2, 3, 4, 5)})
        run.add_tags(["project", "numpy"])
        run.add_tags(["group-a"], group_tags=True)
        run.remove_tags(["numpy"])
        run.assign_files({"config.txt": repr(config).encode()})
        trainer = Trainer(config, run, out)
        for number in range(config.epochs):
            trainer.epoch(number)
        try:
            run.log_metrics({"late": 1.0}, step="soon")
        except (TypeError, NeptuneScaleError) as error:
            print(type(error).__name__)
        run.log_metrics({"final/loss": trainer.batch()}, step=trainer.step, timestamp=datetime.now())
    print("steps", trainer.step, "errors", len(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
