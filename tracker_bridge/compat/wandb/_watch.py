"""`wandb.watch`: the optimizers of certain models are found at their first step. The part that needs torch."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from tracker_bridge.compat._watching import OptimizerWatch

if TYPE_CHECKING:
    import torch

    from tracker_bridge.run import Run


def watch_models(run: Run, models: Any, every_n_steps: int) -> OptimizerWatch:
    """Watch `models` (one or several) into `run` from the first step of whatever optimizer holds their parameters."""
    chosen = list(models) if isinstance(models, (list, tuple)) else [models]
    references = [weakref.ref(model) for model in chosen]
    strangers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def models_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        alive = [model for reference in references if (model := reference()) is not None]
        return [model for model in alive if any(id(parameter) in held for parameter in model.parameters())]

    def run_of(optimizer: torch.optim.Optimizer) -> Run | None:
        if optimizer in strangers:
            return None
        if models_of(optimizer):
            return run
        strangers.add(optimizer)
        return None

    watch = OptimizerWatch(run_of, models_of=models_of, every_n_steps=max(1, int(every_n_steps)))
    watch.install()
    return watch
