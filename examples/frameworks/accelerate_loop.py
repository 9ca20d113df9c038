"""Accelerate: `log_with` the bridge; the norms are those from before `accelerator.clip_grad_norm_`."""

import torch
from accelerate import Accelerator

from tracker_bridge.integrations.accelerate import TrackerBridgeTracker


def main() -> None:
    tracker = TrackerBridgeTracker(tags=["example"])
    accelerator = Accelerator(log_with=tracker, cpu=True, gradient_accumulation_steps=2)
    accelerator.init_trackers("example", config={"lr": 0.05})
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(model, optimizer)
    tracker.watch(model, optimizer, every_n_steps=5)
    for step in range(100):
        with accelerator.accumulate(model):
            inputs = torch.randn(16, 8)
            loss = (model(inputs).squeeze() - inputs.sum(dim=1)).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.log({"loss": loss}, step=step)
    accelerator.end_training()


if __name__ == "__main__":
    main()
