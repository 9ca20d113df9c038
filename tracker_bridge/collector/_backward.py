"""Collecting while backward runs, for optimizers that step inside it and free each gradient at once.

Every watched parameter has a hook that must be there before the optimizer's own. A round is one backward pass; it is
handed on when it ends, or, where that cannot be told (a layer without a gradient, nested backward passes), when the
next one begins or `finish` is called. Nothing is raised into backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from tracker_bridge.collector._measure import Measured, Meter
from tracker_bridge.records import Step


class BackwardHost(Protocol):
    """What this needs of its collector. None of these raises."""

    norm_type: float

    def due(self, counted: int) -> Step | None:
        """The number of the coming step, None if it is not due."""

    def backward_slots(self) -> Sequence[nn.Parameter]:
        """The parameters to watch, one per slot."""

    def backward_done(self, step: Step, measured: Sequence[Measured | None]) -> None:
        """Record what was measured: one single-tensor measurement per slot."""

    def fault(self, error: Exception) -> None:
        """Count and report a fault of the collector itself."""


class InBackward:
    """Watches parameters until `detach`. `step` counts rounds."""

    def __init__(self, host: BackwardHost, step: int) -> None:
        self.step = step
        self._host = host
        self._remove: list[Callable[[], None]] = []
        self._meters: list[Meter] = []
        self._found: list[Measured | None] = []
        self._fired: set[int] = set()
        self._expected = 0
        self._number: Step | None = None
        self._watch()

    def detach(self) -> None:
        """Hand on what is there and remove every hook."""
        self.finish()
        while self._remove:
            self._remove.pop()()

    def finish(self) -> None:
        """The current round is over."""
        if not self._fired:
            return
        number, found = self._number, self._found
        self._expected = len(self._fired)
        self._fired = set()
        self._found = [None] * len(found)
        self.step += 1
        if number is not None:
            self._host.backward_done(number, found)

    def _watch(self) -> None:
        parameters = self._host.backward_slots()
        self._meters = [Meter(self._host.norm_type) for _ in parameters]
        self._found = [None] * len(parameters)
        self._expected = len(parameters)
        for slot, parameter in enumerate(parameters):
            handle = parameter.register_post_accumulate_grad_hook(self._hook(slot))  # type: ignore[no-untyped-call]
            self._remove.append(handle.remove)

    def _hook(self, slot: int) -> Callable[[Tensor], None]:
        def accumulated(parameter: Tensor) -> None:
            try:
                if slot in self._fired:
                    self.finish()
                if not self._fired:
                    self._number = self._host.due(self.step)
                    torch.autograd.Variable._execution_engine.queue_callback(self._over)
                self._fired.add(slot)
                if self._number is not None and parameter.grad is not None:
                    with torch.no_grad():
                        self._found[slot] = self._meters[slot].measure([parameter.grad])
            except Exception as error:
                self._host.fault(error)

        return accumulated

    def _over(self) -> None:
        try:
            if len(self._fired) >= self._expected:
                self.finish()
        except Exception as error:
            self._host.fault(error)
