"""No alarm on healthy training, an alarm on nearly every fault, and the exceptions that are neither. Fixed seeds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.science.faults import AT, FAULTS, STEPS
from tests.science.trainings import HEALTHY_STEPS, Recorder, healthy, perceptron, point_batches
from tracker_bridge.health import Monitor
from tracker_bridge.records import NormVector

pytestmark = [pytest.mark.science, pytest.mark.timeout(400)]

RUNS = 20


@pytest.mark.parametrize("index", range(RUNS))
def test_healthy_training_raises_no_alarm(index: int):
    """Not one alert, not even information, in a run that learns."""
    training = healthy(index)
    records = training.run()
    assert sum(isinstance(record, NormVector) for record in records) == HEALTHY_STEPS
    losses = training.losses
    assert sum(losses[-50:]) < 0.85 * sum(losses[:50]), "this run is not healthy"
    assert list(Monitor().feed_all(records)) == []


def test_the_healthy_runs_are_long_enough():
    """At least 10,000 steps in all."""
    assert RUNS * HEALTHY_STEPS >= 10_000


def test_faults_are_found_in_time_and_in_place():
    """At least 19 of 20 faults within 10 steps, by a fitting rule, with the right layer among the first three."""
    missed, early = [], []
    for fault in FAULTS:
        alerts = list(Monitor().feed_all(fault.run()))
        early += [(fault.name, alert.rule, alert.step) for alert in alerts if alert.step < AT]
        found = [
            alert
            for alert in alerts
            if AT <= alert.step <= AT + 10
            and alert.rule in fault.rules
            and (fault.layer is None or any(name.startswith(fault.layer) for name in alert.layers[:3]))
        ]
        if found:
            print(f"found   {fault.name}: {found[0].rule} at {found[0].step - AT:+d}: {found[0].title}")
        else:
            missed.append(fault.name)
            print(f"MISSED  {fault.name}: {[(alert.rule, alert.step, alert.layers[:3]) for alert in alerts]}")
    assert len(FAULTS) == 20
    assert STEPS > AT + 10
    assert early == []
    assert len(missed) <= 1, missed


class LoRA(nn.Module):
    """A frozen linear layer with a trainable low-rank addition; B starts at zero, so A has no gradient at first."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        self.base = nn.Linear(size_in, size_out).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, size_in) / size_in**0.5)
        self.b = nn.Parameter(torch.zeros(size_out, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def test_lora_starts_with_zero_gradients():
    """A's gradient is exactly zero until B has moved, also through a warm-up that starts at a rate of zero."""
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(16, 32), nn.ReLU(), LoRA(32, 32), nn.ReLU(), LoRA(32, 4))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    recorder, batches = Recorder(model), point_batches(0)
    recorder.collector.attach(optimizer)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, max(0, step - 8) / 20)
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.metrics(step, loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
    assert list(Monitor().feed_all(recorder.finish())) == []


def test_the_search_for_a_loss_scale_is_no_alarm():
    """A real `GradScaler` that starts far too high skips its first steps; that is how it finds its scale."""
    torch.manual_seed(0)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    recorder, batches = Recorder(model), point_batches(0)
    recorder.collector.attach(optimizer, scaler)
    for module in model:
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda _, __, output: (output.register_hook(lambda gradient: gradient.half().float()), None)[1]
            )
    for step in range(150):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.metrics(step, loss=loss.item())
    records = recorder.finish()
    assert sum(record.skipped for record in records if isinstance(record, NormVector)) >= 6
    assert list(Monitor().feed_all(records)) == []
