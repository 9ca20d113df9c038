"""Norms in C: of every length, alignment and layout, and only of tensors that are what they look like."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad as functional_grad

from tracker_bridge.collector import _measure
from tracker_bridge.collector._measure import Meter

if _measure._native is None:
    pytest.skip("the modules in C are not built", allow_module_level=True)
_native = _measure._native


def norm(tensor: torch.Tensor) -> float:
    """What C says."""
    out = np.full(1, -1.0)
    assert _native.norms([tensor], out)
    return float(out[0])


def test_every_length_and_alignment() -> None:
    """Whole blocks, what is left after them, and starts between two words of the processor."""
    numbers = torch.randn(70_000)
    for count in [*range(140), 511, 512, 513, 65_535, 65_536, 65_537]:
        for start in (0, 1, 3, 17):
            piece = numbers[start : start + count]
            assert norm(piece) == pytest.approx(float(piece.double().norm()), rel=1e-14, abs=0.0), (count, start)


@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 1e-20, 1.0, 1e20, 3e38])
@pytest.mark.parametrize("count", [1, 31, 4096, 100_000])
def test_no_square_leaves_the_range(magnitude: float, count: int) -> None:
    """Naive: 0.0 or infinity. Also numbers that are not normal."""
    tensor = torch.full((count,), magnitude)
    assert norm(tensor) == pytest.approx(float(tensor[0].double()) * math.sqrt(count), rel=1e-12)


def test_nan_and_infinity_are_what_they_are() -> None:
    """At any place."""
    for count in (1, 40, 100_000):
        for place in {0, count // 2, count - 1}:
            tensor = torch.randn(count)
            tensor[place] = math.inf
            assert norm(tensor) == math.inf
            tensor[place] = math.nan
            assert math.isnan(norm(tensor))


MAKES: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(30, 50).t(),
    "channels last": lambda: torch.randn(4, 6, 5, 5).to(memory_format=torch.channels_last),
    "every other": lambda: torch.randn(100)[::2],
    "one repeated": lambda: torch.randn(1).expand(50),
    "0-d": lambda: torch.tensor(-3.0),
    "empty": lambda: torch.empty(0),
    "empty, of two dimensions": lambda: torch.empty(0, 5),
    "a parameter": lambda: nn.Parameter(torch.randn(9)),
    "a part of another": lambda: torch.randn(100, 100)[10:20, 5:50],
    "lazily negative": lambda: torch._neg_view(torch.randn(33)),
    "of numpy": lambda: torch.from_numpy(np.arange(17, dtype=np.float32)[1:]),
}


@pytest.mark.parametrize("make", MAKES)
def test_every_layout_in_memory(make: str) -> None:
    """Each is plain, measured right, and not changed."""
    tensor = MAKES[make]()
    before = tensor.detach().clone()
    assert _native.is_plain(tensor)
    assert norm(tensor) == pytest.approx(float(before.double().norm()), rel=1e-14)
    assert torch.equal(tensor.detach(), before)


class _Wrapped(torch.Tensor):
    """Has float32 and a device, as anything may say of itself."""


STRANGE: dict[str, Callable[[], Any]] = {
    "a subclass": lambda: torch.randn(3).as_subclass(_Wrapped),
    "float64": lambda: torch.randn(3, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(3).bfloat16(),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "meta": lambda: torch.empty(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "mkldnn": lambda: torch.randn(3).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "no tensor": lambda: [1.0, 2.0],
    "an array": lambda: np.ones(3, dtype=np.float32),
}


@pytest.mark.filterwarnings("ignore")  # torch's about sparse and quantized tensors
@pytest.mark.parametrize("make", STRANGE)
def test_what_is_not_plain_is_not_read(make: str) -> None:
    """Reading it where it says that it lies would give another tensor's numbers, or end the process."""
    strange = STRANGE[make]()
    assert not _native.is_plain(strange)
    if make not in ("sparse", "mkldnn"):  # those have no address, and torch says so
        assert not _native.norms([strange], np.zeros(1))
    else:
        with pytest.raises((RuntimeError, NotImplementedError)):
            _native.norms([strange], np.zeros(1))


def test_a_tensor_of_a_functional_transform_is_not_read() -> None:
    """Inside `grad` and `vmap` a tensor looks like any other and has no memory."""
    seen: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(_native.is_plain(x))
        return x.sum()

    functional_grad(function)(torch.randn(3))
    torch.vmap(function)(torch.randn(2, 3))
    assert seen == [False, False]


def test_a_place_for_each_tensor_is_needed() -> None:
    """Nothing is written beside the vector."""
    with pytest.raises(ValueError, match="one place for each tensor"):
        _native.norms([torch.ones(1), torch.ones(1)], np.zeros(1))
    with pytest.raises(TypeError):
        _native.norms(None, np.zeros(1))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_list_whose_tensors_become_something_else_is_measured_right() -> None:
    """Plain at first, then another dtype, a sparse one, none, a subclass, and plain again."""
    meter = Meter(2.0)
    plain = torch.full((10, 10), 2.0)
    for other in (
        plain,
        plain.double(),
        plain,
        plain.to_sparse(),
        plain,
        None,
        plain.as_subclass(_Wrapped),
        plain.bfloat16(),
        torch.full((400,), 1.0),
        plain,
    ):
        found = meter.measure([plain, other, plain])
        assert found.present.tolist() == [True, other is not None, True]
        assert found.values.tolist() == [20.0, 0.0 if other is None else 20.0, 20.0]
