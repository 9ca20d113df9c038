"""When to collect: an optimizer's steps, counted and hooked.

The hook's way on a step that is not due is a few Python instructions and no torch operation. Nothing that happens in
here is raised into training. What is measured and recorded is the collector's business, behind `Host`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tracker_bridge.collector._histograms import GradientHistogram
from tracker_bridge.collector._norms import Measurement, Pending
from tracker_bridge.collector._scaler import scale_of, watch_scaler
from tracker_bridge.records import SeriesTable, Step

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Held:
    """A measurement that waits for its optimizer step: what clipping saw, or what a scaler may yet skip.

    `more` is what was measured beside the gradients, each under its own table.
    """

    __slots__ = ("histograms", "measurement", "more", "step", "table", "time_ns")

    def __init__(self, step: Step, time_ns: int, table: SeriesTable, measurement: Measurement | None) -> None:
        self.step = step
        self.time_ns = time_ns
        self.table = table
        self.measurement = measurement
        self.more: list[tuple[SeriesTable, Pending]] = []
        self.histograms: list[GradientHistogram] = []


class Host(Protocol):
    """What an attachment needs of its collector. None of these raises."""

    every_n_steps: int
    update_ratio: bool
    step_of: Callable[[], Step] | None

    def due(self, counted: int) -> Step | None:
        """The number to record the coming step under, None if it is not due."""

    def held_for(self, attachment: Attachment, step: Step, scale: Tensor | None) -> Held | None:
        """Measure the gradients of an attachment's optimizers, unless something did already."""

    def release(self, held: Held, found_inf: Tensor | None, skipped: bool) -> None:
        """Hand a measurement on."""

    def coming(self, attachment: Attachment) -> None:
        """An optimizer step was counted; the next one may be due."""

    def before_update(self, attachment: Attachment, step: Step) -> None:
        """The optimizers are about to change the parameters, at a due step."""

    def after_update(self, attachment: Attachment, found_inf: Tensor | None) -> None:
        """The last of the optimizers has changed the parameters."""

    def fault(self, error: Exception) -> None:
        """Count and report a fault of the collector itself."""

    def forget(self, attachment: Attachment) -> None:
        """The attachment has ended."""


class Attachment:
    """One optimizer, or several that step together, watched until `detach`. `step` counts its optimizer steps.

    `collected` is the step that was measured by hand already, `held` what clipping measured for the coming step.
    """

    def __init__(self, host: Host, optimizers: tuple[Optimizer, ...], scaler: Any, name: str | None, step: int) -> None:
        self._host = host
        self._optimizers = tuple(weakref.ref(optimizer) for optimizer in optimizers)
        self._scaler = scaler
        self._open: Held | None = None
        self._found_inf: Tensor | None = None
        self.name = name
        self.step = step
        self.collected: int | None = None
        self.held: Held | None = None
        self._before = step
        self._in_scaler = False
        self._number: Step | None = None
        self._undo: list[Callable[[], None]] = []
        if scaler is not None:
            self._undo.append(watch_scaler(scaler, self))
        hook = self._counted_hook() if host.step_of is None else self._hook
        self._undo.append(optimizers[0].register_step_pre_hook(hook).remove)
        if host.update_ratio:
            self._undo.append(optimizers[-1].register_step_post_hook(self._after_step).remove)

    def detach(self) -> None:
        """Stop watching. The optimizer and the scaler are as if they had never been attached."""
        while self._undo:
            self._undo.pop()()
        self._host.forget(self)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that are still alive."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizers hold."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        held: list[nn.Parameter] = groups[0]["params"] if len(groups) == 1 else [p for g in groups for p in g["params"]]
        return held

    def own(self) -> set[int]:
        """The ids of the parameters that the optimizers hold."""
        return set(map(id, self.parameters()))

    def unscaled(self) -> bool:
        """Whether the attached scaler has unscaled the gradients of this step in place."""
        if self._scaler is None:
            return False
        for optimizer in self.optimizers[:1]:
            return bool(self._scaler.is_enabled()) and scale_of(self._scaler, optimizer) is None
        return False

    def loss_scale(self) -> Tensor | None:
        """What the loss is multiplied by, whether or not the gradients were unscaled since."""
        enabled = self._scaler is not None and self._scaler.is_enabled()
        scale: Tensor | None = self._scaler._scale if enabled else None
        return scale

    def scale(self) -> Tensor | None:
        """What the gradients are multiplied by right now, as far as the attached scaler knows."""
        for optimizer in self.optimizers[:1]:
            return scale_of(self._scaler, optimizer)
        return None

    # The optimizer's side -----------------------------------------------------------------------------------------

    def _counted_hook(self) -> Callable[..., Any]:
        """The hook for a collector that counts steps itself."""
        host, slow = self._host, self._hook

        def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.step % host.every_n_steps:
                self.step += 1
                if not self.step % host.every_n_steps:
                    host.coming(self)
                return None
            return slow(optimizer, args, kwargs)

        return before_step

    def _hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step = self._number if self._in_scaler else self._host.due(self.step)
        result = None
        if step is not None and self._in_scaler:
            self._found_inf = getattr(optimizer, "found_inf", None)
            if self._host.update_ratio:
                self._host.before_update(self, step)
        elif step is not None:
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if closure is None:
                self._collect(optimizer, step)
            else:
                result = self._with_closure(optimizer, step, closure, args, kwargs)
        self.step += 1
        self._host.coming(self)
        return result

    def _collect(self, optimizer: Optimizer, step: Step) -> None:
        held = self._host.held_for(self, step, getattr(optimizer, "grad_scale", None))
        if held is not None:
            self._host.release(held, getattr(optimizer, "found_inf", None), False)
        if self._host.update_ratio:
            self._host.before_update(self, step)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self._host.after_update(self, getattr(optimizer, "found_inf", None))

    def _with_closure(
        self,
        optimizer: Optimizer,
        step: Step,
        closure: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a step whose gradients its closure computes: collect after the closure's first call."""
        waiting, counted = True, self.step

        def closure_then_collect(*a: Any, **k: Any) -> Any:
            nonlocal waiting
            result = closure(*a, **k)
            if waiting:
                waiting = False
                self.step = counted
                self._collect(optimizer, step)
                self.step = counted + 1
                self._host.coming(self)
            return result

        if len(args) > 1:
            return (args[0], closure_then_collect, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_then_collect}

    # The scaler's side --------------------------------------------------------------------------------------------

    def before_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """Measure while every process still takes the same way: whether to skip may differ from one to another."""
        if not any(optimizer is own for own in self.optimizers[:1]):
            return
        self._found_inf = None
        self._before = self.step
        self._in_scaler = True
        step = self._number = self._host.due(self.step)
        if step is not None:
            try:
                scale = scale_of(scaler, optimizer)
            except Exception as error:
                self._host.fault(error)
                return
            self._open = self._host.held_for(self, step, scale)

    def after_scaler_step(self, optimizer: Optimizer) -> None:
        """Hand on what was measured; an unfused optimizer that was not called has skipped the step."""
        if not any(optimizer is own for own in self.optimizers[:1]):
            return
        self._in_scaler = False
        skipped = self.step == self._before
        if skipped:
            self.step += 1
            self._host.coming(self)
        held, self._open = self._open, None
        if held is not None:
            self._host.release(held, self._found_inf, skipped)
        self._found_inf = None


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer inside a wrapper such as Accelerate's.

    Raises:
        TypeError: it is no optimizer.
    """
    inner = optimizer
    while not hasattr(inner, "_optimizer_step_pre_hooks") and hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(inner, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return inner


def outside_of_dynamo(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, which torch.compile does not trace when the caller is compiled.

    Wrapped at the first call that is traced: the wrapper loads torch.compile, and costs as much as a stack of layers.
    """
    untraced: Callable[_P, _R] | None = None

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        nonlocal untraced
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if untraced is None:
            untraced = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return untraced(*args, **kwargs)

    return call
