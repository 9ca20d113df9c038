"""Optimizers that step inside backward: gradients are gone before any optimizer hook could see them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tracker_bridge.collector import GradientNormCollector, GradientNorms


def build() -> tuple[nn.Module, GradientNormCollector, list[GradientNorms], list[dict[str, float]]]:
    """A model whose optimizer runs in backward, watched; and the true norms of each round."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    seen: list[GradientNorms] = []
    rounds: list[dict[str, float]] = []
    collector = GradientNormCollector(model, sink=seen.append, every_n_steps=2)
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda q, name=name: rounds[-1].update({name: float(q.grad.norm())}))
    collector.attach_in_backward()
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)

        def step(q: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(step)
    return model, collector, seen, rounds


def test_gradients_that_are_freed_in_backward_are_measured() -> None:
    """Each backward pass is a step, recorded when it ends (naive: every gradient is None after backward)."""
    model, collector, seen, rounds = build()
    for _ in range(4):
        rounds.append({})
        model(torch.randn(3, 4)).pow(2).sum().backward()
        assert all(p.grad is None for p in model.parameters())
        assert len(seen) == (len(rounds) + 1) // 2
    assert [norms.step for norms in seen] == [0, 2]
    for norms in seen:
        assert dict(norms.layers) == pytest.approx(rounds[norms.step], rel=1e-6)
    assert collector.step == 4
    collector.detach()
    rounds.append({})
    model(torch.randn(3, 4)).pow(2).sum().backward()
    assert len(seen) == 2
    assert not collector.faults


def test_nested_backward_passes_are_one_round() -> None:
    """Re-entrant checkpointing runs backward inside backward; the step is still one record."""
    model, collector, seen, rounds = build()
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        rounds.append({})
        hidden = checkpoint(model[0], x, use_reentrant=True)
        checkpoint(model[2], hidden, use_reentrant=True).pow(2).sum().backward()
    collector.collect()  # whatever is still open
    assert [norms.step for norms in seen] == [0, 2]
    for norms in seen:
        assert dict(norms.layers) == pytest.approx(rounds[norms.step], rel=1e-6)
    assert collector.step == 3


def test_a_layer_without_a_gradient_does_not_hold_back_later_rounds() -> None:
    """An unused layer delays at most its own first record, and is absent in it."""
    model, collector, seen, rounds = build()
    for _ in range(4):
        rounds.append({})
        model[2](torch.randn(3, 4)).sum().backward()
    collector.collect()
    assert [norms.step for norms in seen] == [0, 2]
    assert [list(norms.layers) for norms in seen] == [["2.weight", "2.bias"]] * 2
