"""Hydra: `python hydra_multirun.py --multirun lr=0.05,0.01` makes a run of each job, its config is the params."""

import hydra
import torch
from omegaconf import DictConfig

import tracker_bridge as bridge


@hydra.main(version_base=None, config_path=".", config_name="hydra_multirun")
def main(config: DictConfig) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    with bridge.init(config.tracker, params=config) as run:
        run.watch(model, optimizer)
        for step in range(config.steps):
            inputs = torch.randn(64, 8)
            loss = (model(inputs).squeeze() - inputs.sum(dim=1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log_metrics({"loss": loss}, step=step)


if __name__ == "__main__":
    main()
