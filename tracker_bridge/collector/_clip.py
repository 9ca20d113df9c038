"""Clipping exactly as torch does it, keeping the norms of the single gradients that torch throws away.

Runs torch's own operations in torch's own order: the result and the gradients are bitwise those of
`torch.nn.utils.clip_grad_norm_`. It decides nothing about what is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_ as torch_clip_grad_norm_
from torch.nn.utils import clip_grads_with_norm_
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype, _has_foreach_support

from tracker_bridge.collector._distributed import replicated

__all__ = ["Norms", "apply_clip", "measure_for_clip", "torch_clip_grad_norm_"]


@dataclass(frozen=True, slots=True)
class Norms:
    """`total` as torch returns it, and `each` [n] behind it: `each[i]` is that of the parameter number `taken[i]`."""

    total: Tensor
    each: Tensor
    taken: list[int]


def measure_for_clip(parameters: Sequence[Tensor], norm_type: float) -> Norms:
    """`torch.nn.utils.get_total_norm` of the gradients of `parameters`, with the norm of each."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return Norms(torch.tensor(0.0), torch.zeros(0), [])
    first = gradients[0].device
    grouped = _group_tensors_by_device_and_dtype([gradients], with_indices=True)  # type: ignore[list-item]
    norms: list[Tensor] = []
    order: list[int] = []
    for (device, _), ([members], indices) in grouped.items():
        if _has_foreach_support(members, device):  # type: ignore[arg-type]
            found = torch._foreach_norm(members, norm_type)  # type: ignore[arg-type]
        else:
            found = tuple(torch.linalg.vector_norm(g, norm_type) for g in members if g is not None)
        norms.extend(found if device == first else [norm.to(first) for norm in found])
        order.extend(indices)
    if len(gradients) < len(parameters):
        there = [index for index, p in enumerate(parameters) if p.grad is not None]
        order = [there[index] for index in order]
    each = torch.stack(norms)
    distributed: Any = each
    if hasattr(distributed, "redistribute"):
        # A DTensor of partial norms: the collective that torch's next operation would make, made where its result is
        # seen, so that reading the single norms costs no second one.
        each = distributed.redistribute(placements=replicated(distributed))
    total = torch.linalg.vector_norm(each, norm_type)
    return Norms(total, each, order)


def apply_clip(parameters: Sequence[Tensor], max_norm: float, total: Tensor) -> None:
    """Multiply the gradients by `min(1, max_norm / (total + 1e-6))`, as torch does; waits for nothing."""
    clip_grads_with_norm_(parameters, max_norm, total)


def raise_if_nonfinite(total: Tensor, norm_type: float) -> None:
    """Torch's error for `error_if_nonfinite=True`. Reads the total, so it waits for the device, as torch does."""
    if torch.logical_or(total.isnan(), total.isinf()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
