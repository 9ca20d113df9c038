"""A complete script: the gradient norm of each layer and the loss, to TensorBoard or to the backends of `argv[1]`."""

import sys

import torch

import tracker_bridge as bridge

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

with bridge.init(sys.argv[1] if len(sys.argv) > 1 else None, tags=["example"], params={"lr": 0.05}) as run:
    run.watch(model, optimizer)
    for step in range(100):
        inputs = torch.randn(64, 8)
        loss = (model(inputs).squeeze() - inputs.sum(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log_metrics({"loss": loss}, step=step)
