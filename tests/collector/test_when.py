"""When the collector measures: optimizer hooks, closures, several optimizers, cadence, and what it leaves alone."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from tracker_bridge.collector import GradientNormCollector, GradientNorms, _measure


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def backward(model: nn.Module) -> dict[str, float]:
    """A new gradient for each layer; the true norms."""
    model.zero_grad()
    model(torch.randn(3, 4)).pow(2).sum().backward()
    return truth(model)


def truth(model: nn.Module) -> dict[str, float]:
    return {n: float(p.grad.double().norm()) for n, p in model.named_parameters() if p.grad is not None}


def watched(
    model: nn.Module, optimizer: torch.optim.Optimizer, **options: object
) -> tuple[GradientNormCollector, list[GradientNorms]]:
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, **options)
    collector.attach(optimizer)
    return collector, seen


def test_steps_are_counted_and_every_nth_is_collected() -> None:
    """Step 0, n, 2n, ... are recorded, each before the optimizer uses the gradients."""
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters())
    collector, seen = watched(model, optimizer, every_n_steps=3)
    expected = {}
    for step in range(8):
        expected[step] = backward(model)
        optimizer.step()
    assert [norms.step for norms in seen] == [0, 3, 6]
    for norms in seen:
        assert dict(norms.layers) == pytest.approx(expected[norms.step], rel=1e-6)
        assert norms.is_ready()
        assert not norms.skipped
        assert norms.clip_coefficient is None
    assert collector.step == 8


def test_counting_continues_on_resume() -> None:
    """Setting `step` continues the numbering of an earlier attempt."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector, seen = watched(model, optimizer, every_n_steps=10)
    collector.step = 95
    for _ in range(10):
        backward(model)
        optimizer.step()
    assert [norms.step for norms in seen] == [100]
    assert collector.step == 105
    with pytest.raises(ValueError, match="step"):
        collector.step = -1


def test_the_step_may_come_from_the_script() -> None:
    """`step=callable` numbers the records by the script's own count, cadence included."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clock = {"step": 0}
    _, seen = watched(model, optimizer, every_n_steps=20, step=lambda: clock["step"])
    for clock["step"] in range(0, 100, 5):
        backward(model)
        optimizer.step()
    assert [norms.step for norms in seen] == [0, 20, 40, 60, 80]


def test_accumulation_gives_one_record_of_the_sum() -> None:
    """Micro-batches add up to one record per optimizer step (naive tensor hooks: one per micro-batch)."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, seen = watched(model, optimizer)
    for _ in range(4):
        model(torch.randn(3, 4)).pow(2).sum().backward()
    expected = truth(model)
    optimizer.step()
    assert len(seen) == 1
    assert dict(seen[0].layers) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("keyword", [False, True])
def test_gradients_of_a_closure_are_those_of_this_step(keyword: bool) -> None:
    """With `step(closure)` the gradients are measured after the closure (naive: None, then the previous step's)."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, seen = watched(model, optimizer)
    expected = []

    def closure() -> float:
        assert torch.is_grad_enabled()
        expected.append(backward(model))
        return 1.5

    for _ in range(3):
        result = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        assert result == 1.5
    assert [norms.step for norms in seen] == [0, 1, 2]
    for norms, true in zip(seen, expected, strict=True):
        assert dict(norms.layers) == pytest.approx(true, rel=1e-6)


def test_lbfgs_is_collected_once_per_step_at_its_first_closure_call() -> None:
    """LBFGS calls the closure many times; one record per step, of the first gradient."""
    model = two_layers()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    _, seen = watched(model, optimizer)
    calls: list[dict[str, float]] = []
    x = torch.randn(3, 4)

    def closure() -> torch.Tensor:
        model.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        calls.append(truth(model))
        return loss

    firsts = []
    for _ in range(2):
        firsts.append(len(calls))
        optimizer.step(closure)
    assert len(calls) > 4
    assert [norms.step for norms in seen] == [0, 1]
    for norms, first in zip(seen, firsts, strict=True):
        assert dict(norms.layers) == pytest.approx(calls[first], rel=1e-6)


def test_an_exception_of_the_closure_is_the_scripts() -> None:
    """What the script's closure raises is raised, and the next step is collected as usual."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector, seen = watched(model, optimizer)

    def closure() -> float:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        optimizer.step(closure)
    backward(model)
    optimizer.step()
    assert [norms.step for norms in seen] == [1]
    assert not collector.faults


def test_gan_each_layer_once_at_its_own_optimizers_step() -> None:
    """Two attached optimizers each record their own layers, each with its own count and total."""
    model = nn.ModuleDict({"g": nn.Linear(4, 4), "d": nn.Linear(4, 1)})
    opt_g = torch.optim.SGD(model["g"].parameters(), lr=0.1)
    opt_d = torch.optim.SGD(model["d"].parameters(), lr=0.1)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, every_n_steps=2)
    collector.attach(opt_g, name="generator")
    collector.attach(opt_d)
    for _ in range(4):
        for optimizer in (opt_d, opt_g):
            model["d"](model["g"](torch.randn(2, 4))).sum().backward()
            optimizer.step()
            model.zero_grad()
    # naive: a shared count would see 8 steps and measure the same optimizer at every even one
    assert [(n.step, n.table.scope, list(n.layers)) for n in seen] == [
        (0, "optimizer_1", ["d.weight", "d.bias"]),
        (0, "generator", ["g.weight", "g.bias"]),
        (2, "optimizer_1", ["d.weight", "d.bias"]),
        (2, "generator", ["g.weight", "g.bias"]),
    ]
    assert collector.step == 4
    assert not collector.faults


def test_optimizers_that_step_together_give_one_record() -> None:
    """A sequence of optimizers (matrices and the rest) is one record per round, whole."""
    model = two_layers()
    matrices = torch.optim.SGD([p for p in model.parameters() if p.dim() == 2], lr=0.1)
    rest = torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2])
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    collector.attach([matrices, rest])
    for _ in range(2):
        expected = backward(model)
        matrices.step()
        rest.step()
        assert dict(seen[-1].layers) == pytest.approx(expected, rel=1e-6)
    assert [norms.step for norms in seen] == [0, 1]


def test_an_optimizer_of_copies_still_measures_the_model() -> None:
    """An optimizer over master copies shares no parameter with the model; the model is measured at its steps."""
    model = two_layers()
    masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    _, seen = watched(model, optimizer)
    expected = backward(model)
    optimizer.step()
    assert dict(seen[0].layers) == pytest.approx(expected, rel=1e-6)


def test_param_groups_added_later_are_measured() -> None:
    """`add_param_group` after `attach` brings its layers in."""
    model = two_layers()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    _, seen = watched(model, optimizer)
    backward(model)
    optimizer.step()
    optimizer.add_param_group({"params": list(model[2].parameters())})
    backward(model)
    optimizer.step()
    assert [len(norms.layers) for norms in seen] == [2, 4]


def test_explicit_collect_without_a_hook() -> None:
    """`collect()` alone counts its calls as steps and follows the cadence; `step=` names the step."""
    model = two_layers()
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, every_n_steps=2)
    results = []
    for _ in range(4):
        expected = backward(model)
        results.append(collector.collect())
        if results[-1] is not None:
            assert dict(results[-1].layers) == pytest.approx(expected, rel=1e-6)
    assert [norms.step for norms in seen] == [0, 2]
    assert [norms is None for norms in results] == [False, True, False, True]
    assert collector.collect(step=7) is None
    assert collector.collect(step=8).step == 8


def test_explicit_collect_and_the_hook_do_not_measure_twice() -> None:
    """A step that was collected by hand is not recorded again by the attached optimizer."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector, seen = watched(model, optimizer)
    for _ in range(3):
        backward(model)
        assert collector.collect() is seen[-1]
        optimizer.step()
    assert [norms.step for norms in seen] == [0, 1, 2]


def test_several_collectors_on_one_model_and_optimizer() -> None:
    """Two collectors with different choices see the same steps independently."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, first = watched(model, optimizer, include="0.*")
    _, second = watched(model, optimizer, norm_type=math.inf, every_n_steps=2)
    for _ in range(4):
        backward(model)
        optimizer.step()
    assert [norms.step for norms in first] == [0, 1, 2, 3]
    assert [norms.step for norms in second] == [0, 2]
    assert second[0].table.norm_type == math.inf


def test_rotate_measures_every_layer_within_k_due_steps() -> None:
    """`rotate=k` measures a k-th of the layers at each due step; no total is claimed."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, seen = watched(model, optimizer, rotate=3, every_n_steps=2)
    for _ in range(12):
        backward(model)
        optimizer.step()
    names = {name for name, _ in model.named_parameters()}
    assert len({id(norms.table) for norms in seen}) == 1
    assert seen[0].table.partial
    for window in range(len(seen) - 2):
        group = [set(norms.layers) for norms in seen[window : window + 3]]
        assert set.union(*group) == names
        assert sum(map(len, group)) == len(names)
    assert all(norms.total is None for norms in seen)
    assert all(3 <= len(norms.layers) <= 4 for norms in seen)


def test_gradients_kept_elsewhere() -> None:
    """`gradient_of` reads what a framework keeps in another attribute (Megatron's `main_grad`)."""
    model = nn.Linear(4, 4)
    for p in model.parameters():
        p.main_grad = torch.full_like(p, 2.0, dtype=torch.float32)
    collector = GradientNormCollector(model, gradient_of=lambda p: getattr(p, "main_grad", None))
    assert dict(collector.collect().layers) == {"weight": 8.0, "bias": 4.0}
    with pytest.raises(ValueError, match="note_clip"):
        collector.clip_grad_norm_(1.0)


def test_a_callable_grouping_is_evaluated_once_per_table() -> None:
    """`group_by` names the group of each slot in the table, once."""
    model = two_layers()
    calls: list[str] = []

    def group_by(name: str) -> str:
        calls.append(name)
        return name.split(".")[1]

    collector = GradientNormCollector(model, group_by=group_by)
    for _ in range(3):
        backward(model)
        norms = collector.collect()
    assert norms.table.groups == {"custom": ("weight", "bias", "weight", "bias")}
    assert len(calls) == 4


def test_detach_leaves_everything_as_it_was() -> None:
    """After `detach` neither the optimizer nor the scaler knows the collector."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    collector = GradientNormCollector(model)
    handle = collector.attach(optimizer, scaler)
    assert type(scaler) is not torch.amp.GradScaler
    handle.detach()
    assert type(scaler) is torch.amp.GradScaler
    assert not optimizer._optimizer_step_pre_hooks
    collector.attach(optimizer)
    collector.detach()
    assert not optimizer._optimizer_step_pre_hooks


def test_faults_of_the_sink_never_reach_training() -> None:
    """A sink that raises is counted and warned of once; training goes on and later steps are tried again."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def sink(norms: GradientNorms) -> None:
        raise OSError("disk full")

    collector = GradientNormCollector(model, sink=sink)
    collector.attach(optimizer)

    def train() -> None:
        for _ in range(3):
            backward(model)
            optimizer.step()

    with pytest.warns(UserWarning, match="OSError: disk full") as warned:
        train()
    assert len(warned) == 1
    assert collector.faults == {"OSError": 3}


def test_faults_are_contained_even_where_warnings_are_errors() -> None:
    """With warnings as errors (as in this test suite) a fault still does not raise; `on_fault` gets it instead."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector, _ = watched(model, optimizer, gradient_of=lambda p: 1 / 0)
    optimizer.step()
    assert collector.faults == {"ZeroDivisionError": 1}
    given: list[Exception] = []
    collector, _ = watched(model, optimizer, step=lambda: {}["missing"], on_fault=given.append)
    optimizer.step()
    assert [type(error) for error in given] == [KeyError]


def test_measuring_changes_nothing() -> None:
    """Gradients (infinite ones too), RNG state, grad mode and hook order are as without a collector."""
    model = two_layers()
    backward(model)
    model[0].weight.grad[0, 0] = math.inf
    before = {n: p.grad.clone() for n, p in model.named_parameters()}
    versions = {n: p.grad._version for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order: list[str] = []
    optimizer.register_step_pre_hook(lambda *a: order.append("first"))
    _, seen = watched(model, optimizer)
    optimizer.register_step_pre_hook(lambda *a: order.append(f"last, after {len(seen)}"))
    state = torch.get_rng_state()
    hook = list(optimizer._optimizer_step_pre_hooks.values())[1]
    assert hook(optimizer, (optimizer,), {}) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, before[name])
        assert p.grad._version == versions[name]
    optimizer.step()
    assert order == ["first", "last, after 2"]
    # naive measuring with clip_grad_norm_(max_norm=inf) multiplies everything by inf / inf
    torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    assert all(p.grad.isnan().all() for p in model.parameters())


def test_a_watched_run_trains_bitwise_the_same() -> None:
    """Training with the collector on every step ends in the very same weights."""

    def train(watch: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        if watch:
            watched(model, optimizer)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).pow(2).sum().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(True), train(False), strict=True))


@pytest.mark.parametrize("native", [True, False])
def test_a_step_that_is_not_due_runs_no_torch_operation(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    """Between due steps the hook dispatches nothing; a due step reads no scalar back one by one."""
    if not native:
        monkeypatch.setattr(_measure, "_native", None)
    elif _measure._native is None:
        pytest.skip("the modules in C are not built")
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    collector, seen = watched(model, optimizer, every_n_steps=2)
    backward_input = torch.randn(2, 8)
    model(backward_input).sum().backward()
    optimizer.step()
    hook = next(iter(optimizer._optimizer_step_pre_hooks.values()))

    def operations() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            hook(optimizer, (optimizer,), {})
        return [event.name for event in profile.events() if event.name.startswith("aten::")]

    assert collector.step == 1
    assert operations() == []
    due = operations()
    assert len(seen) == 2
    assert bool(due) is not native
    assert not any("_local_scalar_dense" in name or name == "aten::item" for name in due)
    # naive: 2 operations per layer, 40 layers; here one per shape (two of them), whose sums of squares are numpy's
    assert sum(name in ("aten::stack", "aten::linalg_vector_norm") for name in due) == (0 if native else 2)


def test_operations_grow_with_shapes_not_with_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the layers of the same shapes cost no more calls into torch. (In C there are none.)"""
    monkeypatch.setattr(_measure, "_native", None)

    def calls(layers: int) -> int:
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        collector = GradientNormCollector(model)
        collector.collect()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            collector.collect()
        return sum(event.name in ("aten::stack", "aten::linalg_vector_norm") for event in profile.events())

    assert calls(10) == calls(100)


COMPILE = """
import torch, sys
from torch import nn
from tracker_bridge.collector import GradientNormCollector

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
seen = []
watched = torch.compile(model, backend="eager") if sys.argv[1] == "model" else model
collector = GradientNormCollector(watched, sink=seen.append)
collector.attach(optimizer)
forward = torch.compile(model, backend="eager", fullgraph=True)

@torch.compile(backend="eager")
def step():
    optimizer.step()

for _ in range(4):
    optimizer.zero_grad()
    forward(torch.ones(3, 4)).pow(2).sum().backward()
    true = {n: float(p.grad.norm()) for n, p in model.named_parameters()}
    step()
    assert abs(seen[-1].layers["0.weight"] / true["0.weight"] - 1) < 1e-5
    assert list(seen[-1].layers) == list(true)
assert [n.step for n in seen] == [0, 1, 2, 3], [n.step for n in seen]
assert not collector.faults, collector.faults
from torch._dynamo.utils import counters
print(sum(counters["recompiles"].values()) if "recompiles" in counters else 0, counters["stats"]["unique_graphs"])
"""


@pytest.mark.parametrize("what", ["model", "step"])
def test_compiled_models_and_compiled_optimizer_steps(what: str) -> None:
    """Under torch.compile the hooks run at every step, outside of the graph, and the model compiles once."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, what], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "not collected" not in done.stderr
