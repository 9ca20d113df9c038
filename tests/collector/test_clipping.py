"""Clipping: bitwise torch's, with the norms from before it; or torch's own, undone from its result."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tracker_bridge.collector import GradientNormCollector, GradientNorms


def model_with_gradients(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        *[nn.Linear(32, 32) for _ in range(4)], nn.LayerNorm(32), nn.Linear(32, 400), nn.Linear(3, 2)
    ).to(dtype)
    for index, p in enumerate(model.parameters()):
        p.grad = (torch.randn(p.shape) * (index + 1)).to(dtype) if index != 3 else None
    model[-1].double()
    model[-1].weight.grad = torch.randn(2, 3, dtype=torch.float64)
    return model


def truth(model: nn.Module) -> dict[str, float]:
    return {n: float(p.grad.double().norm()) for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_result_and_gradients_are_bitwise_torchs(max_norm: float, norm_type: float, dtype: torch.dtype) -> None:
    """Switching to the collector's `clip_grad_norm_` changes no bit of a training run."""
    ours, theirs = model_with_gradients(dtype=dtype), model_with_gradients(dtype=dtype)
    collector = GradientNormCollector(ours)
    total = collector.clip_grad_norm_(max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type)
    assert torch.equal(total, expected)
    assert total.dtype == expected.dtype
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or torch.equal(a.grad, b.grad)
    assert not collector.faults


def test_norms_are_from_before_clipping() -> None:
    """Layers, total and coefficient are those that clipping started from (naive: measured after, all too small)."""
    model = model_with_gradients()
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    before = truth(model)
    total = collector.clip_grad_norm_(0.5)
    (norms,) = seen
    assert dict(norms.layers) == pytest.approx(before, rel=1e-5)
    assert norms.total == float(total)
    assert norms.clip_coefficient == pytest.approx(0.5 / (float(total) + 1e-6), rel=1e-6)
    assert norms.max_norm == 0.5
    assert not norms.post_clip
    assert max(truth(model).values()) <= 0.5 + 1e-6
    assert collector.collect() is norms  # the same step, not measured again
    assert len(seen) == 1


def test_no_second_pass_over_the_gradients() -> None:
    """At a due step clipping runs the very norm operations of torch's and none besides."""
    model = model_with_gradients()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    collector.attach(optimizer)
    collector.clip_grad_norm_(1e9)

    def norm_operations(call: object) -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call()
        names = [event.name for event in profile.events()]
        assert not any("_local_scalar_dense" in name for name in names)
        return sorted(name for name in names if "norm" in name or "foreach" in name or "stack" in name)

    def ours() -> None:
        collector.clip_grad_norm_(1e9)
        next(iter(optimizer._optimizer_step_pre_hooks.values()))(optimizer, (optimizer,), {})

    theirs = norm_operations(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    assert norm_operations(ours) == theirs
    assert len(seen) == 1


def test_the_hook_hands_on_what_clipping_measured() -> None:
    """With an attached optimizer a clipped step is one record; a step that is not due is clipped all the same."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, every_n_steps=2)
    collector.attach(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).sum().backward()
        before = truth(model)
        collector.clip_grad_norm_(0.1)
        assert math.hypot(*truth(model).values()) == pytest.approx(0.1, rel=1e-4)
        optimizer.step()
        if step % 2 == 0:
            assert dict(seen[-1].layers) == pytest.approx(before, rel=1e-5)
    assert [norms.step for norms in seen] == [0, 2]


def test_only_selected_layers_are_recorded_but_all_are_clipped() -> None:
    """The clip and its total are over the whole model, the layers are the chosen ones."""
    model = model_with_gradients()
    collector = GradientNormCollector(model, include=["5.*"])
    whole = math.hypot(*truth(model).values())
    collector.clip_grad_norm_(0.5)
    norms = collector.collect()
    assert list(norms.layers) == ["5.weight", "5.bias"]
    assert norms.total == pytest.approx(whole, rel=1e-5)


def test_clipping_by_another_norm_keeps_the_collectors_norms() -> None:
    """A clip by the infinity norm records 2-norms of the layers and the clip's own total."""
    model = model_with_gradients()
    before = truth(model)
    peak = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    collector = GradientNormCollector(model)
    collector.clip_grad_norm_(0.5, norm_type=math.inf)
    norms = collector.collect()
    assert dict(norms.layers) == pytest.approx(before, rel=1e-5)
    assert norms.total == pytest.approx(peak, rel=1e-6)


def test_error_if_nonfinite_raises_torchs_error_and_records_the_step() -> None:
    """The error is torch's, the gradients are untouched, and the record says which layer it was."""
    model = model_with_gradients()
    model[1].weight.grad[0, 0] = math.nan
    kept = model[0].weight.grad.clone()
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    with pytest.raises(RuntimeError) as theirs:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    with pytest.raises(RuntimeError) as ours:
        collector.clip_grad_norm_(1.0, error_if_nonfinite=True)
    assert str(ours.value) == str(theirs.value)
    assert torch.equal(model[0].weight.grad, kept)
    bad = [name for name, value in seen[0].layers.items() if not math.isfinite(value)]
    assert bad == ["1.weight"]
    assert math.isnan(seen[0].total)


def test_note_clip_recovers_the_norms_from_before() -> None:
    """With torch's own clipping and its total, the record holds what was before it."""
    model = model_with_gradients()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    collector.attach(optimizer)
    before = truth(model)
    collector.note_clip(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5), 0.5)
    optimizer.step()
    assert dict(seen[0].layers) == pytest.approx(before, rel=1e-4)  # naive: 1/200 of it
    assert seen[0].total == pytest.approx(math.hypot(*before.values()), rel=1e-5)
    optimizer.step()  # the note is for one step only
    assert seen[1].clip_coefficient is None


def test_note_clip_for_a_step_that_is_not_due_is_forgotten() -> None:
    """A note does not leak into a later step."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, every_n_steps=2)
    collector.attach(optimizer)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    collector.note_clip(123.0, 1.0)
    optimizer.step()
    optimizer.step()
    assert [norms.clip_coefficient for norms in seen] == [None, None]
    assert seen[1].layers == seen[0].layers


def test_note_clip_of_an_infinite_total() -> None:
    """Clipping by an infinite total makes finite layers 0: they are absent, and the culprit is NaN."""
    model = model_with_gradients()
    model[1].weight.grad[0, 0] = math.inf
    collector = GradientNormCollector(model)
    collector.note_clip(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5), 0.5)
    norms = collector.collect()
    assert list(norms.layers) == ["1.weight"]
    assert math.isnan(norms.layers["1.weight"])
    assert norms.total == math.inf
    assert norms.clip_coefficient == 0.0


def test_a_gan_clips_each_half_apart() -> None:
    """`parameters=` clips one optimizer's layers; the record is that optimizer's."""
    model = nn.ModuleDict({"g": nn.Linear(4, 4), "d": nn.Linear(4, 1)})
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    optimizers = {name: torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("g", "d")}
    for name, optimizer in optimizers.items():
        collector.attach(optimizer, name=name)
    for _ in range(2):
        for name, optimizer in optimizers.items():
            model.zero_grad()
            model["d"](model["g"](torch.randn(2, 4))).sum().backward()
            before = {k: v for k, v in truth(model).items() if k.startswith(name)}
            collector.clip_grad_norm_(0.01, parameters=model[name].parameters())
            optimizer.step()
            assert dict(seen[-1].layers) == pytest.approx(before, rel=1e-5)
    assert [(n.step, n.table.scope) for n in seen] == [(0, "g"), (0, "d"), (1, "g"), (1, "d")]


def test_clipping_everything_before_two_optimizers_step() -> None:
    """One clip over all layers before two attached optimizers step is one record."""
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 1)})
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    optimizers = [torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("a", "b")]
    for optimizer in optimizers:
        collector.attach(optimizer)
    for _ in range(2):
        model.zero_grad()
        model["b"](model["a"](torch.randn(2, 4))).sum().backward()
        before = truth(model)
        collector.clip_grad_norm_(0.01)
        for optimizer in optimizers:
            optimizer.step()
        assert dict(seen[-1].layers) == pytest.approx(before, rel=1e-5)
    assert [(n.step, n.table.scope) for n in seen] == [(0, ""), (1, "")]


def test_a_model_without_gradients_clips_like_torch() -> None:
    """Nothing to clip: torch's zero total, no record of layers."""
    model = nn.Linear(2, 2)
    collector = GradientNormCollector(model)
    assert torch.equal(collector.clip_grad_norm_(1.0), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    assert not collector.faults


def stepping(clip: str, **options: object) -> list[GradientNorms]:
    """Six steps of a small model whose script clips in the given way; the collector is told nothing."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, **options)
    collector.attach(optimizer)
    for _ in range(6):
        optimizer.zero_grad(set_to_none=clip != "nothing, zeroed in place")
        for _ in range(2):
            model(torch.randn(3, 4)).pow(2).sum().backward()
        if clip == "torch":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        elif clip == "value":
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        elif clip == "noted":
            collector.note_clip(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1), 0.1)
        elif clip == "ours":
            collector.clip_grad_norm_(0.1)
        optimizer.step()
    assert not collector.faults
    return seen


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("clip", ["torch", "value"])
def test_clipping_that_nobody_told_of_is_said(clip: str, every: int) -> None:
    """Where the script clips and says nothing, the record says that its values are from after it."""
    seen = stepping(clip, every_n_steps=every)
    assert len(seen) == 6 // every
    assert all(norms.post_clip for norms in seen)
    assert all(norms.to_record(0).post_clip for norms in seen)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("clip", ["nothing", "nothing, zeroed in place", "noted", "ours"])
def test_post_clip_is_not_said_without_reason(clip: str, every: int) -> None:
    """Accumulation and zeroing in place are not taken for clipping, nor is clipping that is known."""
    assert not any(norms.post_clip for norms in stepping(clip, every_n_steps=every))


def test_the_watch_on_a_gradient_exists_only_while_a_step_is_due() -> None:
    """Between due steps no parameter carries a hook, and none after `detach`."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = GradientNormCollector(model, every_n_steps=3)

    def hooked() -> bool:
        return any(p._post_accumulate_grad_hooks for p in model.parameters())

    collector.attach(optimizer)
    states = []
    for _ in range(5):
        states.append(hooked())
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert states == [True, False, False, True, False]
    collector.step = 6
    assert hooked()
    collector.detach()
    assert not hooked()
