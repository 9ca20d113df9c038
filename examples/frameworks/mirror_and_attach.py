"""A script that keeps its `SummaryWriter`: its calls are copied to other backends, or ours are put beside its own."""

import torch
from torch.utils.tensorboard import SummaryWriter

import tracker_bridge as bridge


def train(writer: SummaryWriter, run: bridge.Run) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.watch(model, optimizer)
    for step in range(50):
        inputs = torch.randn(64, 8)
        loss = (model(inputs).squeeze() - inputs.sum(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss, step)


def main() -> None:
    with (
        SummaryWriter("own/mirrored") as writer,
        bridge.init(backends={"jsonl": {}}) as run,
        bridge.mirror("tensorboard", run),  # what the script logs goes to the run, too
    ):
        train(writer, run)
    with SummaryWriter("own/attached") as writer, bridge.attach(writer) as run:
        train(writer, run)  # the norms are in the script's own event file


if __name__ == "__main__":
    main()
