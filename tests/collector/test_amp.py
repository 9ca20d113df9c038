"""Gradient scalers: true norms, skipped steps that are recorded as such, and a numbering that never shifts."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from tracker_bridge.collector import GradientNormCollector, GradientNorms

SCALE = 1024.0


class Training:
    """A small model under a CPU `GradScaler`; step number `overflow` gets an infinite gradient."""

    def __init__(self, fused: bool, give_scaler: bool = True, overflow: int = 1, **options: object) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        self.seen: list[GradientNorms] = []
        self.true: list[dict[str, float]] = []
        self.collector = GradientNormCollector(self.model, sink=self.seen.append, **options)
        self.collector.attach(self.optimizer, self.scaler if give_scaler else None)
        self.overflow = overflow
        self.updated: list[bool] = []

    def run(self, steps: int, between: object = None) -> None:
        for step in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(3, 4)).pow(2).sum()
            scale = self.scaler._scale.item() if self.scaler._scale is not None else SCALE
            self.scaler.scale(loss).backward()
            if step == self.overflow:
                self.model[1].weight.grad[0, 0] = math.inf
            self.true.append({n: float(p.grad.norm()) / scale for n, p in self.model.named_parameters()})
            before = self.model[0].weight.detach().clone()
            if between is not None:
                between(self)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.updated.append(not torch.equal(before, self.model[0].weight))


@pytest.mark.parametrize("fused", [False, True])
def test_true_norms_and_marked_skips(fused: bool) -> None:
    """Norms are unscaled (naive: 1024 times too large if fused); an overflow is a record of its own number."""
    training = Training(fused)
    training.run(4)
    assert training.updated == [True, False, True, True]
    assert [n.step for n in training.seen] == [0, 1, 2, 3]  # naive: the hook of an unfused optimizer never sees step 1
    assert [n.skipped for n in training.seen] == [False, True, False, False]
    for norms, true in zip(training.seen, training.true, strict=True):
        assert dict(norms.layers) == pytest.approx(true, rel=1e-5)
    assert training.seen[1].layers["1.weight"] == math.inf
    assert math.isfinite(training.seen[1].layers["0.weight"])  # which layer overflowed is known
    assert training.collector.step == 4
    assert not training.collector.faults


@pytest.mark.parametrize("fused", [False, True])
def test_cadence_counts_skipped_steps(fused: bool) -> None:
    """A skipped step that is not due is counted all the same, and one that is due is recorded."""
    training = Training(fused, every_n_steps=2, overflow=1)
    training.run(5)
    assert [(n.step, n.skipped) for n in training.seen] == [(0, False), (2, False), (4, False)]
    training = Training(fused, every_n_steps=2, overflow=2)
    training.run(5)
    assert [(n.step, n.skipped) for n in training.seen] == [(0, False), (2, True), (4, False)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("how", ["collector", "torch"])
def test_unscaled_and_clipped(fused: bool, how: str) -> None:
    """After an explicit `unscale_` and clipping the norms are those from before both."""

    def between(training: Training) -> None:
        training.scaler.unscale_(training.optimizer)
        if how == "collector":
            training.collector.clip_grad_norm_(0.01)
        else:
            total = torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.01)
            training.collector.note_clip(total, 0.01)

    training = Training(fused)
    training.run(4, between)
    assert [(n.step, n.skipped) for n in training.seen] == [(0, False), (1, True), (2, False), (3, False)]
    for step in (0, 2, 3):
        norms = training.seen[step]
        assert dict(norms.layers) == pytest.approx(training.true[step], rel=1e-4)
        assert norms.total == pytest.approx(math.hypot(*training.true[step].values()), rel=1e-4)
        assert norms.clip_coefficient == pytest.approx(0.01 / (norms.total + 1e-6), rel=1e-4)
    assert not training.collector.faults


def test_fused_without_the_scaler_given() -> None:
    """A fused optimizer tells its hooks about scale and overflow, so it is right without the scaler too."""
    training = Training(True, give_scaler=False)
    training.run(3)
    assert [(n.step, n.skipped) for n in training.seen] == [(0, False), (1, True), (2, False)]
    for norms, true in zip(training.seen, training.true, strict=True):
        assert dict(norms.layers) == pytest.approx(true, rel=1e-5)


def test_unfused_without_the_scaler_given_is_right_where_it_steps() -> None:
    """Without the scaler, steps that an unfused optimizer takes have true norms; skipped ones are not seen."""
    training = Training(False, give_scaler=False)
    training.run(3)
    assert [n.step for n in training.seen] == [0, 1]
    assert dict(training.seen[1].layers) == pytest.approx(training.true[2], rel=1e-5)


def test_the_scale_is_never_read_on_the_training_thread() -> None:
    """Collecting calls neither `get_scale` nor `item` (the only scalar read is torch's own, for the skip)."""

    def reads(watch: bool) -> int:
        training = Training(False, overflow=-1)
        if not watch:
            training.collector.detach()
        training.run(1)
        training.optimizer.zero_grad()
        training.scaler.scale(training.model(torch.randn(3, 4)).sum()).backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            training.scaler.step(training.optimizer)
        assert len(training.seen) == (2 if watch else 0)
        return sum("_local_scalar_dense" in event.name for event in profile.events())

    assert reads(True) == reads(False)


def test_a_watched_scaler_pickles_and_copies_as_itself() -> None:
    """Copies of a watched scaler are plain scalers with its state."""
    training = Training(False)
    training.run(2)
    for other in (copy.deepcopy(training.scaler), pickle.loads(pickle.dumps(training.scaler))):
        assert type(other) is torch.amp.GradScaler
        assert other.get_scale() == SCALE / 2
    assert isinstance(training.scaler, torch.amp.GradScaler)
    training.collector.detach()
    assert type(training.scaler) is torch.amp.GradScaler


def test_two_collectors_on_one_scaler() -> None:
    """Several collectors may watch one scaler and leave in any order."""
    training = Training(False)
    seen: list[GradientNorms] = []
    second = GradientNormCollector(training.model, sink=seen.append)
    second.attach(training.optimizer, training.scaler)
    training.run(2)
    assert [(n.step, n.skipped) for n in seen] == [(0, False), (1, True)]
    training.collector.detach()
    training.run(1)
    assert len(seen) == 3
    assert len(training.seen) == 2
    second.detach()
    assert type(training.scaler) is torch.amp.GradScaler


def test_a_disabled_scaler_changes_nothing() -> None:
    """`GradScaler(enabled=False)` is the same as none."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    seen: list[GradientNorms] = []
    GradientNormCollector(model, sink=seen.append).attach(optimizer, scaler)
    scaler.scale(model(torch.randn(2, 4)).sum()).backward()
    scaler.step(optimizer)
    assert [n.step for n in seen] == [0]
    assert seen[0].layers["weight"] == pytest.approx(float(model.weight.grad.norm()), rel=1e-6)
