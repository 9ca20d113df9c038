"""The usual way to see where gradients vanish: one series for each parameter."""

import torch
from neptune_scale import Run
from torch import nn

torch.manual_seed(1)

params = {"lr": 1e-2, "layers": 4, "width": 8, "steps": 6}
model = nn.Sequential(
    *[layer for _ in range(params["layers"]) for layer in (nn.Linear(params["width"], params["width"]), nn.Tanh())],
    nn.Linear(params["width"], 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=params["lr"])
criterion = nn.CrossEntropyLoss()
x, y = torch.randn(32, params["width"]), torch.randint(0, 2, (32,))


def main():
    run = Run(experiment_name="gradient-norms", run_id="gradient-norms-1")
    run.log_configs({f"parameters/{name}": value for name, value in params.items()})
    run.add_tags(["gradient_tracking", "pytorch"])
    for step in range(params["steps"]):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        run.log_metrics(data={"metrics/train/loss": loss.item()}, step=step)
        for name, param in model.named_parameters():
            if param.grad is not None:
                run.log_metrics(data={f"debug/gradient/{name}/norm": param.grad.norm().item()}, step=step)
        optimizer.step()
        print(step, round(loss.item(), 5))
    run.close()


if __name__ == "__main__":
    main()
