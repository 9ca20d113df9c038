"""The measured values themselves: every dtype, layout and magnitude, against float64 references."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from tracker_bridge.collector import GradientNormCollector, GradientNorms, _measure

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # torch says it once when a sparse tensor is made
    pytest.mark.filterwarnings("ignore:Using backward.. with create_graph"),
]


@pytest.fixture(params=[(1, "C"), (2, "C"), (1, "Python"), (2, "Python")], ids=str, autouse=True)
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Large gradients are measured in another way with several threads, and most of them in another way in C."""
    threads, way = request.param
    if way == "Python":
        monkeypatch.setattr(_measure, "_native", None)
    elif _measure._native is None:
        pytest.skip("the modules in C are not built")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


class Bag(nn.Module):
    """A model that is nothing but parameters `p0`, `p1`, ... with the given gradients."""

    def __init__(self, *gradients: torch.Tensor | None) -> None:
        super().__init__()
        for index, gradient in enumerate(gradients):
            like = torch.zeros(3) if gradient is None else torch.zeros(gradient.shape, dtype=gradient.dtype)
            parameter = nn.Parameter(like)
            parameter.grad = gradient
            setattr(self, f"p{index}", parameter)


def collect(model: nn.Module, **options: object) -> GradientNorms:
    collector = GradientNormCollector(model, **options)
    norms = collector.collect()
    assert norms is not None, collector.faults
    return norms


def norms_of(*gradients: torch.Tensor | None, norm_type: float = 2.0) -> list[float]:
    found = collect(Bag(*gradients), norm_type=norm_type).layers
    return [found[f"p{i}"] for i, g in enumerate(gradients) if g is not None]


def reference(gradient: torch.Tensor, p: float = 2.0) -> float:
    if gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    wide = gradient.detach().to(torch.complex128 if gradient.is_complex() else torch.float64).reshape(-1)
    if not wide.numel():
        return 0.0
    peak = float(wide.abs().max())
    return peak * float(np.linalg.norm((wide / peak).numpy(), p)) if 0 < peak < math.inf else peak


def test_half_precision_norm_beyond_the_range_of_its_dtype_is_right() -> None:
    """A float16 gradient whose norm exceeds 65504 is measured, not infinite."""
    gradient = torch.full((1 << 20,), 100.0, dtype=torch.float16)
    assert torch._foreach_norm([gradient])[0].item() == math.inf  # the naive value
    assert norms_of(gradient)[0] == pytest.approx(102400.0, rel=1e-6)


def test_bfloat16_norm_is_not_rounded_to_bfloat16() -> None:
    """The norm of a bfloat16 gradient keeps float32 precision."""
    gradient = torch.full((1000,), 0.1, dtype=torch.bfloat16)
    assert float(gradient.norm()) == 3.171875  # the naive value; the truth is 3.16537
    assert norms_of(gradient)[0] == pytest.approx(reference(gradient), rel=1e-6)


@pytest.mark.parametrize("count", [10_000_000, 10_000_384])  # the second is a multiple of the row that is measured
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ten_million_equal_elements_are_within_1e_5(dtype: torch.dtype, count: int) -> None:
    """Summing many squares loses nothing that matters (torch's float32 norm on the CPU is 0.8% off)."""
    gradient = torch.full((count,), 0.1, dtype=dtype)
    if dtype == torch.float32:
        assert abs(float(torch.linalg.vector_norm(gradient)) / reference(gradient) - 1) > 1e-3  # the naive value
    assert norms_of(gradient)[0] == pytest.approx(reference(gradient), rel=1e-5)


@pytest.mark.parametrize("shape", [(4,), (64, 64), (300, 300), (256, 256), (100_001,)])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("magnitude", [1e30, 1e-30, 1e-22])
def test_magnitudes_whose_squares_leave_float32(magnitude: float, count: int, shape: tuple[int, ...]) -> None:
    """Neither overflow nor underflow of a square reaches the norm (naive: inf, or exactly 0)."""
    gradients = [torch.full(shape, magnitude) for _ in range(count)]
    naive = float(torch.linalg.vector_norm(gradients[0]))
    assert naive == 0.0 or naive == math.inf or abs(naive / reference(gradients[0]) - 1) > 1e-3
    assert norms_of(*gradients) == pytest.approx([reference(g) for g in gradients], rel=1e-5)


def test_float64_gradients_are_measured_in_float64() -> None:
    """A float64 norm keeps float64 precision, also beyond float32's range."""
    gradients = [
        torch.randn(n, dtype=torch.float64) * scale for n in (5, 64, 20_000, 20_480) for scale in (1e60, 1e-170, 1e170)
    ]
    assert norms_of(*gradients) == pytest.approx([reference(g) for g in gradients], rel=1e-13)


def test_sparse_gradients_coalesced_or_not_and_untouched() -> None:
    """Repeated indices of a sparse gradient count as their sum, and the gradient itself stays as it was."""
    loose = torch.sparse_coo_tensor([[0, 0, 1]], [3.0, 4.0, 0.0], (3,))
    tight = torch.sparse_coo_tensor([[0, 2]], [3.0, 4.0], (3,)).coalesce()
    assert float(loose._values().norm()) == 5.0  # the naive value; the truth is 7
    assert norms_of(loose, tight) == [7.0, 5.0]
    assert not loose.is_coalesced()
    assert loose._nnz() == 3


def test_embedding_with_sparse_gradients_next_to_dense_layers() -> None:
    """A real sparse embedding is measured together with dense layers."""
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model(torch.tensor([1, 1, 3])).sum().backward()
    expected = {name: reference(p.grad) for name, p in model.named_parameters()}
    assert dict(collect(model).layers) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_complex_gradients(p: float) -> None:
    """The norm of a complex gradient is that of the magnitudes of its elements."""
    gradients = [torch.complex(torch.randn(50), torch.randn(50)), torch.tensor(3 + 4j)]
    assert norms_of(*gradients, norm_type=p) == pytest.approx([reference(g, p) for g in gradients], rel=1e-6)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, 7.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_any_norm_type(p: float, dtype: torch.dtype) -> None:
    """Norms of every order, of tensors small, equal in shape, and large."""
    torch.manual_seed(0)
    shapes = [(), (3,), (0,), (64, 64), (64, 64), (64, 64), (7, 5, 3), (130, 100), (9001,), (32, 32, 3, 3), (300, 300)]
    gradients = [torch.randn(shape).to(dtype) for shape in shapes]
    expected = [reference(g, p) if g.dim() else abs(float(g)) for g in gradients]
    assert norms_of(*gradients, norm_type=p) == pytest.approx(expected, rel=2e-6)


def test_empty_gradients_are_zero_for_every_norm_type() -> None:
    """An empty tensor has norm 0 (naive: the infinity norm of an empty tensor raises)."""
    with pytest.raises(RuntimeError, match="empty"):
        torch._foreach_norm([torch.zeros(0)], math.inf)
    for p in (1.0, 2.0, 3.0, math.inf):
        assert norms_of(torch.zeros(0), torch.zeros(0, 5), torch.ones(2), norm_type=p)[:2] == [0.0, 0.0]


@pytest.mark.parametrize("size", [16, 200, 600])
def test_gradients_in_any_memory_order(size: int) -> None:
    """Transposed, strided, expanded and channels-last gradients are measured where they lie."""
    base = torch.randn(2 * size, 3 * size)
    gradients = [
        base.t(),
        base[::2, 1::3],
        torch.ones(1).expand(size),
        torch.randn(2, 8, size, size // 4).to(memory_format=torch.channels_last),
        base[:, :size],
    ]
    assert norms_of(*gradients) == pytest.approx([reference(g) for g in gradients], rel=2e-6)


def test_absent_is_not_zero() -> None:
    """A layer without a gradient is missing; one whose gradient is zero is there with 0.0."""
    norms = collect(Bag(None, torch.zeros(3), torch.ones(4)))
    assert dict(norms.layers) == {"p1": 0.0, "p2": 2.0}
    assert norms.present.tolist() == [False, True, True]
    assert norms.total == 2.0


@pytest.mark.parametrize("shape", [(3,), (64, 64), (300, 300), (256, 256)])
@pytest.mark.parametrize("count", [1, 4])
def test_nan_and_infinities_are_reported_per_layer(count: int, shape: tuple[int, ...]) -> None:
    """One bad element makes its own layer NaN or infinite and no other."""
    good = [torch.ones(shape) for _ in range(count)]
    nan, inf, minus = torch.ones(shape), torch.ones(shape), torch.ones(shape)
    nan.view(-1)[1], inf.view(-1)[0], minus.view(-1)[2] = math.nan, math.inf, -math.inf
    for p in (1.0, 2.0, 3.0, math.inf):
        found = norms_of(nan, *good, inf, minus, norm_type=p)
        assert math.isnan(found[0])
        assert found[-2:] == [math.inf, math.inf]
        assert found[1:-2] == pytest.approx([reference(g, p) for g in good], rel=1e-6)


def test_total_is_the_norm_of_the_concatenation() -> None:
    """The total is the norm of all measured gradients as one vector."""
    gradients = [torch.randn(64, 64), torch.randn(5), torch.randn(100, 300)]
    together = torch.cat([g.reshape(-1) for g in gradients])
    for p in (1.0, 2.0, 3.0, math.inf):
        assert collect(Bag(*gradients), norm_type=p).total == pytest.approx(reference(together, p), rel=1e-6)


def test_what_changes_between_steps_is_noticed() -> None:
    """Presence, dtype, shape, memory order and layout of gradients may change from step to step."""
    model = Bag(torch.ones(64, 64), torch.ones(64, 64), torch.ones(64, 64), torch.ones(300, 300), torch.ones(256, 256))
    collector = GradientNormCollector(model)

    def check() -> None:
        norms = collector.collect()
        assert norms is not None
        expected = {name: reference(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        assert dict(norms.layers) == pytest.approx(expected, rel=1e-6)

    check()
    model.p1.grad = None
    check()
    model.p1.grad = torch.full((64, 64), 2.0).to_sparse()
    check()
    model.p1.grad = torch.arange(64.0 * 64).view(64, 64).t()
    model.p3.grad = torch.ones(300, 300).t()
    model.p4.grad = torch.arange(256.0 * 256).view(256, 256).t()
    check()
    model.p4.grad = torch.eye(256).to_sparse()
    check()
    model.p4.grad = torch.ones(256, 256)
    check()
    model.double()
    model.p0.grad = torch.full((64, 64), 1e200, dtype=torch.float64)
    check()
    model.half()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    check()
    model.p3.data = torch.zeros(7, dtype=torch.float16)
    model.p3.grad = torch.ones(7, dtype=torch.float16)
    for name in ("p0", "p1", "p2"):
        getattr(model, name).data = torch.zeros(5, 5, dtype=torch.float16)
        getattr(model, name).grad = torch.ones(5, 5, dtype=torch.float16)
    check()
    assert not collector.faults


def test_a_mixed_dtype_bucket_is_not_rounded_silently() -> None:
    """Gradients of one shape in several dtypes are each measured at full precision."""
    gradients = [torch.randn(64, 64, dtype=d) for d in (torch.float64, torch.float32, torch.bfloat16) for _ in range(4)]
    assert norms_of(*gradients) == pytest.approx([reference(g) for g in gradients], rel=2e-6)
    assert norms_of(*gradients)[:4] == pytest.approx([reference(g) for g in gradients[:4]], rel=1e-14)


def test_measuring_under_autocast_is_the_same() -> None:
    """An autocast region around `collect` changes nothing."""
    gradients = [torch.randn(64, 64) for _ in range(4)] + [torch.randn(300, 300)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norms_of(*gradients) == pytest.approx([reference(g) for g in gradients], rel=1e-6)


def test_gradients_that_require_gradients() -> None:
    """Double backward keeps working around a collected step."""
    model = nn.Linear(256, 256)
    x = torch.randn(4, 256)
    model(x).pow(2).sum().backward(create_graph=True)
    norms = collect(model)
    assert norms.layers["weight"] == pytest.approx(reference(model.weight.grad), rel=1e-6)
    assert model.weight.grad.requires_grad
    model.weight.grad.pow(2).sum().backward()


def test_a_gradient_that_is_the_lazy_negative_of_another() -> None:
    """The imaginary part of a conjugate is a view with a sign to be turned, which numpy knows nothing of."""
    gradient = torch.randn(256, 256, dtype=torch.complex64).conj().imag
    assert gradient.is_neg()
    assert norms_of(gradient) == pytest.approx([reference(gradient)], rel=1e-6)
    whole = torch._neg_view(torch.randn(256, 256))
    assert norms_of(whole) == pytest.approx([reference(whole)], rel=1e-6)
    model = Bag(torch.ones(256, 256))
    collector = GradientNormCollector(model)
    assert collector.collect() is not None
    model.p0.grad = whole
    norms = collector.collect()
    assert norms is not None
    assert norms.layers["p0"] == pytest.approx(reference(whole), rel=1e-6)


def test_float8_gradients_are_measured() -> None:
    """Types that torch cannot take a norm of are widened first (naive: NotImplementedError)."""
    gradient = torch.tensor([1.0, 2.0, 2.0]).to(torch.float8_e4m3fn)
    assert norms_of(gradient) == [3.0]
