"""What an optimizer step has added to each parameter, without a copy of the parameters where it can be told.

For Adam, AdamW and SGD in float32 and wider the update follows from the parameter and the optimizer's state after the
step (the formulas of torch.optim's documentation); one parameter at a time, so the extra memory is that of one. For
other optimizers, and where rounding may swallow the update (half precision), a copy is taken before the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer


def group_of(optimizers: list[Optimizer]) -> dict[int, tuple[Optimizer, dict[str, Any]]]:
    """The optimizer and the parameter group of each parameter, by id."""
    return {id(p): (o, group) for o in optimizers for group in o.param_groups for p in group["params"]}


def needs_copy(parameter: Tensor, optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether the update can only be told from a copy of the parameter from before the step."""
    if parameter.dtype not in (torch.float32, torch.float64):
        return True
    if type(optimizer) in (Adam, AdamW):
        return bool(group.get("maximize", False))
    if type(optimizer) is SGD:
        # Nesterov writes into the gradient, and the layout of a sharded gradient need not be the parameter's.
        return bool(group["nesterov"] or group.get("maximize", False) or hasattr(parameter, "_local_tensor"))
    return True


def update_of(
    parameter: Tensor, gradient: Tensor, optimizer: Optimizer, group: dict[str, Any], before: Tensor | None
) -> Tensor:
    """What the step that has just been taken added to `parameter`, by `gradient`: this process's shard of it."""
    here = local(parameter.detach())
    if before is not None:
        return here - before
    state = optimizer.state.get(parameter, {})
    rate, decay = group["lr"], group["weight_decay"]
    if type(optimizer) is SGD:
        moved: Tensor = local(state["momentum_buffer"] if group["momentum"] else gradient.detach()) * rate
        # With momentum the decay is in the buffer; without, p_new = p (1 - lr decay) - lr grad.
        shrunk = bool(decay) and not group["momentum"]
    else:
        moved = _adam_step(state, group) * rate
        shrunk = bool(decay) and (type(optimizer) is AdamW or bool(group.get("decoupled_weight_decay", False)))
    added: Tensor = here - (here + moved) / (1 - rate * decay) if shrunk else -moved
    return added


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a DTensor, anything else as it is."""
    shard: Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard


def _adam_step(state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """`m_hat / (sqrt(v_hat) + eps)`, with the step count left on its device."""
    beta1, beta2 = group["betas"]
    step: Tensor = state["step"]
    second = local(state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"])
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    direction: Tensor = (local(state["exp_avg"]) / correction1) / ((second / correction2).sqrt() + group["eps"])
    return direction
