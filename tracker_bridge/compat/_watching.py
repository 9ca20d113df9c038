"""Finds, at an optimizer's first step, the model that it trains, and watches both: no change to the script.

Cost: a lookup in a dictionary before each optimizer step; at the first step of each optimizer one pass over the objects
that Python's garbage collector knows (0.1 to 0.2 us each). No module, parameter or optimizer is kept alive or changed,
apart from the optimizer's own step hook. Nothing is raised into training. The only part of `compat` that needs torch.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracker_bridge.compat._coverage import say_once

if TYPE_CHECKING:
    import torch

    from tracker_bridge.collector import GradientNormCollector
    from tracker_bridge.run import Run

_DEEPEST_SCALER = 12
# Frames between an optimizer's hook and the `GradScaler.step` that called it: torch has about six.


class OptimizerWatch:
    """Watches each optimizer from its first step on, into the run that `run_of(optimizer)` names (None: not yet).

    `models_of`: the modules whose parameters an optimizer steps. `options`: those of `Run.watch`. Call `install` once.
    """

    def __init__(
        self,
        run_of: Callable[[torch.optim.Optimizer], Run | None],
        *,
        models_of: Callable[[torch.optim.Optimizer], list[torch.nn.Module]] | None = None,
        **options: Any,
    ) -> None:
        self._run_of = run_of
        self._models_of = models_of or find_models
        self._options = options
        self._runs: dict[int, Run] = {}
        self._watched: list[tuple[Run, weakref.ref[torch.nn.Module], GradientNormCollector]] = []
        self._handle: Any = None

    def install(self) -> None:
        """Be called before every step of every optimizer of this process."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Stop: collectors that were made are detached, and no optimizer is found any more."""
        if self._handle is not None:
            self._handle.remove()
        for _, _, collector in self._watched:
            collector.detach()
        self._watched.clear()

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        run = self._runs.get(id(optimizer))
        if run is None or run._closed:
            self._first_step(optimizer)

    def _first_step(self, optimizer: torch.optim.Optimizer) -> None:
        try:
            run = self._run_of(optimizer)
            if run is None or run._closed:
                return
            number = id(optimizer)
            if number not in self._runs:
                weakref.finalize(optimizer, self._runs.pop, number, None)
            self._runs[number] = run
            if not _is_attached(run, optimizer):
                self._watch(run, optimizer)
        except Exception as error:
            say_once(f"the gradients of {type(optimizer).__name__} are not watched: {type(error).__name__}: {error}")

    def _watch(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        models = self._models_of(optimizer)
        if not models:
            say_once(
                f"no module holds the parameters of {type(optimizer).__name__}; its gradients are not watched. "
                "Call tracker_bridge.current().watch(model, optimizer)"
            )
        scaler = _calling_scaler()
        self._watched = [entry for entry in self._watched if not entry[0]._closed]
        for model in models:
            known = [one for of, at, one in self._watched if of is run and at() is model]
            if known:
                known[0].attach(optimizer, scaler)
            else:
                collector = run.watch(model, optimizer, scaler=scaler, **self._options)
                self._watched.append((run, weakref.ref(model), collector))


def find_models(optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
    """The outermost living modules that hold the optimizer's parameters: as few as cover them all.

    Between two that hold the same, the one with fewer other parameters. Modules hidden by `gc.freeze` are not found.
    """
    from torch import nn

    left = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    kinds = _subclasses(nn.Module)
    modules = [thing for thing in gc.get_objects() if type(thing) in kinds]
    inner = {id(child) for module in modules for child in (module.__dict__.get("_modules") or {}).values()}
    held: list[tuple[nn.Module, set[int]]] = []
    for module in modules:
        if id(module) not in inner and "_parameters" in module.__dict__:
            own = {id(parameter) for parameter in module.parameters()}
            if not own.isdisjoint(left):
                held.append((module, own))
    chosen: list[nn.Module] = []
    while left and held:
        best = max(held, key=lambda one: (len(one[1] & left), -len(one[1])))
        if best[1].isdisjoint(left):
            break
        chosen.append(best[0])
        left -= best[1]
        held.remove(best)
    return chosen


def _subclasses(base: type) -> set[type]:
    found: set[type] = {base}
    new: list[type] = [base]
    while new:
        kinds: list[type] = new.pop().__subclasses__()
        for kind in kinds:
            if kind not in found:
                found.add(kind)
                new.append(kind)
    return found


def _is_attached(run: Run, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the script watches this optimizer itself."""
    return any(
        optimizer is known
        for collector in run._collectors
        for attachment in collector._attachments
        for known in attachment.optimizers
    )


def _calling_scaler() -> Any:
    """The `GradScaler` whose `step` has led here, if one has."""
    amp = sys.modules.get("torch.amp.grad_scaler")
    frame = sys._getframe(1)
    for _ in range(_DEEPEST_SCALER):
        if amp is None or frame.f_back is None:
            return None
        frame = frame.f_back
        caller = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if isinstance(caller, amp.GradScaler):
            return caller
    return None
