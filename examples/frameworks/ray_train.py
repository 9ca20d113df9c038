"""Ray Train: each worker calls `init`; the first one writes, the norms are those of the gradients of all.

Workers start elsewhere in the file system: name the queue directory absolutely.
"""

import os

import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import tracker_bridge as bridge


def train(config: dict) -> None:
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    with bridge.init(dir=config["runs"], params=config, tags=["example"]) as run:
        run.watch(model, optimizer, every_n_steps=5)
        for step in range(50):
            inputs = torch.randn(32, 8)
            loss = (model(inputs).squeeze() - inputs.sum(dim=1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log_metrics({"loss": loss}, step=step)


if __name__ == "__main__":
    TorchTrainer(
        train,
        train_loop_config={"lr": 0.05, "runs": os.path.abspath("tracker_bridge_runs")},
        scaling_config=ScalingConfig(num_workers=2),
    ).fit()
