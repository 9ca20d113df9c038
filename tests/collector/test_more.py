"""What can be recorded beside gradient norms, all of it off by default."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tracker_bridge.collector import GradientHistogram, GradientNormCollector, GradientNorms
from tracker_bridge.records import unpack_values


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def kinds(seen: list[GradientNorms], kind: str) -> list[GradientNorms]:
    return [norms for norms in seen if norms.kind == kind]


def test_nothing_but_gradients_by_default() -> None:
    """A plain collector records one kind and hooks no module."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[GradientNorms] = []
    GradientNormCollector(model, sink=seen.append).attach(optimizer)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    assert [norms.kind for norms in seen] == ["gradients"]
    assert not any(module._forward_hooks for module in model.modules())


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd, decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    "adamw, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw, maximize": lambda p: torch.optim.AdamW(p, lr=0.01, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_ratio_is_what_the_step_really_did(name: str) -> None:
    """The ratio equals the norm of the real change over the norm of the parameter, for every optimizer."""
    model = build()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, update_ratio=True, parameter_norms=True)
    collector.attach(optimizer)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).pow(2).sum().backward()
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer.step()
        norms = {n: float(b.norm()) for n, b in before.items()}
        moved = {n: float((p.detach() - before[n]).double().norm()) for n, p in model.named_parameters()}
        assert not collector.faults
        ratio, parameters = kinds(seen, "update_ratio")[step], kinds(seen, "parameters")[step]
        assert dict(parameters.layers) == pytest.approx(norms, rel=1e-5)
        assert dict(ratio.layers) == pytest.approx({n: moved[n] / norms[n] for n in norms}, rel=1e-3)
        assert ratio.total == pytest.approx(math.hypot(*moved.values()) / math.hypot(*norms.values()), rel=1e-3)
        assert ratio.step == step


def test_no_copy_of_the_parameters_for_adamw() -> None:
    """Where the optimizer's state tells the update, no parameter is copied before the step."""
    for factory, copies in ((OPTIMIZERS["adamw"], 0), (OPTIMIZERS["rmsprop"], 6)):
        model = build()
        optimizer = factory(list(model.parameters()))
        collector = GradientNormCollector(model, update_ratio=True)
        attachment = collector.attach(optimizer)
        model(torch.randn(3, 4)).sum().backward()
        collector.before_update(attachment, 0)
        assert len(collector._updating[attachment].copies) == copies


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_updates_nothing(fused: bool) -> None:
    """The update of a step that the scaler skips is 0, or not recorded where the optimizer was never called."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    seen: list[GradientNorms] = []
    GradientNormCollector(model, sink=seen.append, update_ratio=True).attach(optimizer, scaler)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(3, 4)).sum()).backward()
        if step == 1:
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    ratios = kinds(seen, "update_ratio")
    assert ratios[0].total > 0
    assert [(n.step, n.total) for n in ratios[1:]] == ([(1, 0.0)] if fused else [])


def test_zero_fraction_and_parameter_norms() -> None:
    """The share of exact zeros per layer and in total, counted exactly."""
    model = build()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model[2].weight.grad.view(-1)[:16] = 0.0
    model[4].bias.grad = None
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, zero_fraction=True, parameter_norms=True)
    collector.collect()
    (zeros,) = kinds(seen, "zero_fraction")
    assert zeros.layers["2.weight"] == 0.25
    assert zeros.layers["0.weight"] == 0.0
    assert "4.bias" not in zeros.layers
    assert zeros.total == pytest.approx(16 / (32 + 8 + 64 + 8 + 16))
    assert "4.bias" in kinds(seen, "parameters")[0].layers
    assert zeros.table.names == seen[0].table.names


def test_more_is_recorded_with_clipping_too() -> None:
    """A clipped step carries the other kinds as well."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(
        model, sink=seen.append, zero_fraction=True, parameter_norms=True, update_ratio=True
    )
    collector.attach(optimizer)
    model(torch.randn(3, 4)).sum().backward()
    collector.clip_grad_norm_(0.1)
    optimizer.step()
    assert sorted(norms.kind for norms in seen) == ["gradients", "parameters", "update_ratio", "zero_fraction"]


def test_activations_and_their_gradients() -> None:
    """Norms of chosen outputs and of the gradients that reach them, over all micro-batches of a step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, activations=["0", nn.Tanh], every_n_steps=2)
    collector.attach(optimizer)
    hooked, outputs, gradients = [], {}, {}
    for _ in range(3):
        hooked.append(sum(len(module._forward_hooks) for module in model.modules()))
        outputs, gradients = {}, {}
        for _ in range(2):
            x = torch.randn(3, 4)
            kept = {}
            for name, module in model.named_children():
                x = module(x)
                if name in ("0", "1", "3"):
                    x.retain_grad()
                    kept[name] = x
            x.pow(2).sum().backward()
            for name, tensor in kept.items():
                outputs.setdefault(name, []).append(tensor.detach())
                gradients.setdefault(name, []).append(tensor.grad)
        optimizer.step()
    assert hooked == [3, 0, 3]  # hooks exist only while due
    assert not any(module._forward_hooks for module in model.modules())
    last, reached = kinds(seen, "activations")[-1], kinds(seen, "activation_gradients")[-1]
    assert (last.step, reached.step) == (2, 2)
    assert dict(last.layers) == pytest.approx({n: float(torch.cat(t).norm()) for n, t in outputs.items()}, rel=1e-5)
    assert dict(reached.layers) == pytest.approx(
        {n: float(torch.cat(t).norm()) for n, t in gradients.items()}, rel=1e-5
    )
    assert not collector.faults


def test_activation_gradients_are_unscaled() -> None:
    """Under a scaler the gradients of activations are the true ones, also after `unscale_` of the parameters'."""
    found = []
    for scale in (1.0, 256.0):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        seen: list[GradientNorms] = []
        GradientNormCollector(model, sink=seen.append, activations="0").attach(optimizer, scaler)
        scaler.scale(model(torch.ones(3, 4)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        found.append(kinds(seen, "activation_gradients")[0].layers["0"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_under_checkpointing_count_once(reentrant: bool) -> None:
    """The forward pass that checkpointing runs again is not counted again; gradients are seen once."""

    def train(checkpointed: bool) -> dict[str, dict[str, float]]:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[GradientNorms] = []
        GradientNormCollector(model, sink=seen.append, activations=["0", "2"]).attach(optimizer)
        x = torch.ones(3, 4, requires_grad=True)
        if checkpointed:
            x = checkpoint(model[:2], x, use_reentrant=reentrant)
            x = checkpoint(model[2:], x, use_reentrant=reentrant)
        else:
            x = model(x)
        x.pow(2).sum().backward()
        optimizer.step()
        return {norms.kind: dict(norms.layers) for norms in seen}

    plain, again = train(False), train(True)
    for kind in ("activations", "activation_gradients"):
        assert again[kind] == pytest.approx(plain[kind], rel=1e-6)


def test_activations_are_not_kept_alive_and_evaluation_is_not_measured() -> None:
    """No output survives because of a hook, and passes in eval mode are left out."""
    model = build()
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, activations="*")
    with torch.no_grad():
        alive = weakref.ref(model(torch.randn(3, 4)))
    assert alive() is None
    model.eval()
    model(torch.randn(300, 4))
    model.train()
    y = model(torch.ones(1, 4))
    y.sum().backward()
    collector.collect()
    total = kinds(seen, "activations")[0].layers["4"]
    assert total < 20  # of 4 rows, not of 304


def test_outputs_that_are_no_plain_tensor() -> None:
    """The first floating tensor of a tuple or a mapping is measured; a module without one is absent."""

    class Tuple(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[object, ...]:
            return torch.tensor([1]), {"hidden": x * 2}

    class Nothing(nn.Module):
        def forward(self, x: object) -> None:
            return None

    model = nn.ModuleDict({"t": Tuple(), "n": Nothing()})
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, activations=["t", "n"])
    model["t"](torch.ones(4))
    model["n"](3)
    model.w = nn.Parameter(torch.ones(1))
    model.w.grad = torch.ones(1)
    collector.collect()
    assert dict(kinds(seen, "activations")[0].layers) == {"t": 4.0}
    assert not collector.faults


COMPILE = """
import sys, torch
from torch import nn
from tracker_bridge.collector import GradientNormCollector

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
if sys.argv[1] == "wrapped":
    net = call = torch.compile(model, backend="eager", fullgraph=True)
    graphs, expected = 1, None
elif sys.argv[1] == "unknown":
    net, call = model, torch.compile(model, backend="eager", fullgraph=True)
    graphs, expected = 2, None
else:
    net = call = nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager", fullgraph=True), nn.Linear(4, 2))
    graphs, expected = 1, ["", "0", "1"]
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
seen = []
collector = GradientNormCollector(net, sink=seen.append, every_n_steps=2, activations="*")
collector.attach(optimizer)
for _ in range(8):
    optimizer.zero_grad()
    call(torch.ones(3, 4)).pow(2).sum().backward()
    optimizer.step()
assert not collector.faults, collector.faults
found = [list(n.layers) for n in seen if n.kind == "activations"]
assert expected is None or found == [expected] * 4, found
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, torch._dynamo.utils.counters
"""


@pytest.mark.parametrize("how", ["wrapped", "unknown", "block"])
def test_activation_hooks_do_not_disturb_compilation(how: str) -> None:
    """Hooks that come and go break no graph: a compiled module is hooked from outside only.

    Where the script compiles a model that the collector got uncompiled, there is one more graph (with the hooks, which
    do nothing in it), and no more however often they come and go.
    """
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, how], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr


def test_histograms_are_counted_on_the_device() -> None:
    """64 bins over the layer's own range hold every finite element; NaN and infinities are in none."""
    model = build()
    seen: list[GradientHistogram] = []
    collector = GradientNormCollector(model, histogram_sink=seen.append)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    model[2].weight.grad[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    model[4].bias.grad = torch.zeros(2)
    collector.collect()
    assert not collector.faults
    assert [h.name for h in seen] == [f"gradient_histograms/{name}" for name, _ in model.named_parameters()]
    for histogram, p in zip(seen, model.parameters(), strict=True):
        record = histogram.to_record()
        edges, counts = unpack_values(record.edges), unpack_values(record.counts)
        finite = p.grad[p.grad.isfinite()].double().numpy()
        expected, _ = np.histogram(finite, bins=edges)
        assert len(counts) == 64
        assert counts.sum() == finite.size
        assert np.abs(np.cumsum(counts) - np.cumsum(expected)).max() <= 1  # a value on an edge may fall to either side


def test_histogram_edges_are_unscaled() -> None:
    """Under a scaler the edges are those of the true gradients."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    seen: list[GradientHistogram] = []
    GradientNormCollector(model, histogram_sink=seen.append, include="weight").attach(optimizer, scaler)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.step(optimizer)
    edges = unpack_values(seen[0].to_record().edges)
    assert (edges[0], edges[-1]) == (-1.0, 1.0)
