"""Values on their way to the host; on an accelerator without a single synchronisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tracker_bridge.collector import GradientNormCollector, GradientNorms, copy_to_host

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_host_values_are_read_without_a_scalar_read() -> None:
    """Scalars and vectors of every dtype reach the host as float64, with no blocking scalar read."""
    values = [torch.tensor(1.5), torch.tensor(2, dtype=torch.int64), torch.tensor([3.0, 4.0]), torch.tensor(True)]
    half = torch.tensor(0.1, dtype=torch.bfloat16, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        copy = copy_to_host([*values, half])
        assert copy.is_ready()
        found = copy.values()
    assert found.tolist() == [1.5, 2.0, 3.0, 4.0, 1.0, float(half.detach())]
    assert found.dtype == np.float64
    assert not any("_local_scalar_dense" in event.name for event in profile.events())


def test_a_copy_is_of_what_was_there() -> None:
    """Changing or freeing the tensor afterwards changes nothing."""
    tensor = torch.ones(3)
    copy = copy_to_host([tensor])
    tensor.zero_()
    assert copy.values().tolist() == [1.0, 1.0, 1.0]


def model_on_cuda() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)], nn.LayerNorm(64), nn.Linear(64, 2)).cuda()


@cuda
def test_no_synchronisation_on_cuda() -> None:
    """Hook, clip, note, scaler and parameter norms run under torch's sync debug mode set to raise."""
    model = model_on_cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, parameter_norms=True, zero_fraction=True)
    collector.attach(optimizer, scaler)
    expected = []
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 64, device="cuda")).sum()).backward()
        expected.append({n: float(p.grad.double().norm()) / scaler.get_scale() for n, p in model.named_parameters()})
        torch.cuda.set_sync_debug_mode("error" if step >= 2 else "default")  # the first steps may still allocate
        try:
            if step % 2:
                scaler.unscale_(optimizer)
                collector.clip_grad_norm_(1.0)
            scaler.step(optimizer)
            scaler.update()
            seen[-1].is_ready()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    gradients = [norms for norms in seen if norms.kind == "gradients"]
    assert [norms.step for norms in gradients] == list(range(6))
    for norms, true in zip(gradients, expected, strict=True):
        assert dict(norms.layers) == pytest.approx(true, rel=1e-4)
    assert not collector.faults


@cuda
def test_values_of_many_pending_steps_stay_apart() -> None:
    """Records that nobody reads for a long time keep their own values; none waits for another."""
    model = model_on_cuda()
    collector = GradientNormCollector(model)
    pending = []
    for step in range(200):
        for p in model.parameters():
            p.grad = torch.full_like(p, step + 1.0)
        pending.append(collector.collect())
    torch.cuda.synchronize()
    assert all(norms.is_ready() for norms in pending)
    for step, norms in enumerate(pending):
        assert norms.layers["0.bias"] == pytest.approx((step + 1) * 8.0)


@cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cuda_values_do_not_over_or_underflow(dtype: torch.dtype) -> None:
    """Norms are accumulated in float64, so no magnitude of the dtype over- or underflows."""
    peak = {torch.float32: 1e30, torch.float16: 6e4, torch.bfloat16: 1e30}[dtype]
    model = nn.ParameterList([nn.Parameter(torch.zeros(1 << 20, dtype=dtype, device="cuda")) for _ in range(2)])
    model[0].grad = torch.full_like(model[0], peak)
    model[1].grad = torch.full_like(model[1], 1e-30 if dtype != torch.float16 else 1e-7)
    values = GradientNormCollector(model).collect().values
    for value, p in zip(values, model, strict=True):
        assert value == pytest.approx(float(p.grad[0].double()) * math.sqrt(1 << 20), rel=1e-6)


@cuda
def test_kernels_do_not_grow_with_layers() -> None:
    """A due step of 20 and one of 100 layers launch the same number of kernels."""

    def kernels(layers: int) -> int:
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)]).cuda()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        collector = GradientNormCollector(model)
        collector.collect().values
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            collector.collect()
            torch.cuda.synchronize()
        return len(profile.events())

    assert kernels(100) <= kernels(20) + 4


@cuda
def test_capture_is_guarded() -> None:
    """Inside a CUDA graph capture nothing is recorded, nothing breaks, and the fault is counted."""
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    faults: list[Exception] = []
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append, on_fault=faults.append)
    collector.attach(optimizer)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    assert len(seen) == 1
    assert "captured" in str(faults[0])
