"""Hyper-parameter search in nested runs, with torch and autologging switched on."""

import mlflow
import mlflow.pytorch
import torch
from mlflow.models import infer_signature
from torch import nn

mlflow.set_experiment("/tutorial/search")
torch.manual_seed(4)
x, y = torch.randn(24, 3), torch.randn(24, 1)


def objective(lr: float) -> float:
    with mlflow.start_run(nested=True, run_name=f"lr={lr}") as child:
        mlflow.log_param("lr", lr)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for step in range(5):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            mlflow.log_metrics({"mse": loss.item(), "weight_norm": model.weight.norm().item()}, step=step)
        assert mlflow.active_run().info.run_id == child.info.run_id
    return loss.item()


with mlflow.start_run(run_name="search") as parent:
    mlflow.log_params({"trials": 2, "model": "linear"})
    losses = {lr: objective(lr) for lr in (0.01, 0.1)}
    best = min(losses, key=losses.get)
    mlflow.log_metric("best_mse", losses[best])
    mlflow.set_tags({"best": best, "kind": "search"})
    mlflow.log_dict({str(lr): loss for lr, loss in losses.items()}, "losses.json")
    mlflow.log_text("lower is better", "about/metric.txt")
    print("signature", infer_signature is not None)

print("best", best, losses[best])
