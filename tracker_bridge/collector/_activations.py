"""Norms of what chosen modules put out, and of the gradients that reach it.

The hooks are there only while the coming step is due. They return nothing, keep no activation, do nothing while a
forward pass is compiled (a compiled region is seen from outside, at its wrapper), is being recomputed by
checkpointing, or evaluates.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tracker_bridge.collector._device import HostCopy, PinnedPool, copy_to_host
from tracker_bridge.collector._measure import Measured, Meter
from tracker_bridge.collector._names import outermost_modules
from tracker_bridge.collector._norms import Finished, combined


class ActivationProbe:
    """Measures the outputs of `choose`-n modules from `arm` to `take`; micro-batches count together."""

    def __init__(
        self, choose: Callable[[str, nn.Module], bool], norm_type: float, fault: Callable[[Exception], None]
    ) -> None:
        self._choose = choose
        self._norm_type = norm_type
        self._fault = fault
        self._remove: list[Callable[[], None]] = []
        self._names: tuple[str, ...] = ()
        self._meters: list[tuple[Meter, Meter]] = []
        self._outputs: list[list[Measured]] = []
        self._gradients: list[list[Measured]] = []

    def arm(self, model: nn.Module) -> None:
        """Hook the chosen modules of `model` as it is now, if they are not hooked already."""
        if self._remove:
            return
        chosen = [(name, module) for name, module in outermost_modules(model) if self._choose(name, module)]
        names = tuple(name for name, _ in chosen)
        if names != self._names or len(self._meters) != len(names):
            self._names = names
            self._meters = [(Meter(self._norm_type), Meter(self._norm_type)) for _ in names]
        self._outputs = [[] for _ in names]
        self._gradients = [[] for _ in names]
        for slot, (_, module) in enumerate(chosen):
            self._remove.append(module.register_forward_hook(self._hook(slot)).remove)

    def disarm(self) -> None:
        """Remove the hooks."""
        while self._remove:
            self._remove.pop()()

    def take(self, pool: PinnedPool) -> tuple[tuple[str, ...], OutputNorms, OutputNorms] | None:
        """Names, activations and activation gradients since `arm`; None if nothing was seen. Disarms."""
        self.disarm()
        outputs, gradients = self._outputs, self._gradients
        self._outputs, self._gradients = [], []
        if not any(outputs):
            return None
        return self._names, OutputNorms(outputs, self._norm_type, pool), OutputNorms(gradients, self._norm_type, pool)

    def _hook(self, slot: int) -> Callable[..., None]:
        me = weakref.ref(self)

        def after_forward(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
            if torch.compiler.is_compiling() or not module.training:
                return
            probe = me()
            if probe is not None:
                probe._seen(slot, output)

        return after_forward

    def _seen(self, slot: int, output: Any) -> None:
        try:
            tensor = _first_tensor(output)
            if tensor is None or not self._remove:
                return
            if torch._C._current_graph_task_id() == -1:  # not inside backward, where checkpointing runs forward again
                with torch.no_grad():
                    self._outputs[slot].append(self._meters[slot][0].measure([tensor.detach()]))
            if tensor.requires_grad:
                tensor.register_hook(self._gradient_hook(slot, self._gradients))  # type: ignore[no-untyped-call]
        except Exception as error:
            self._fault(error)

    def _gradient_hook(self, slot: int, into: list[list[Measured]]) -> Callable[[Tensor], None]:
        me = weakref.ref(self)

        def seen(gradient: Tensor) -> None:
            probe = me()
            if probe is None or into is not probe._gradients:
                return
            try:
                with torch.no_grad():
                    into[slot].append(probe._meters[slot][1].measure([gradient]))
            except Exception as error:
                probe._fault(error)

        return seen


class OutputNorms:
    """Norms of the outputs of one step, micro-batches together, perhaps still on a device."""

    def __init__(self, seen: Sequence[Sequence[Measured]], norm_type: float, pool: PinnedPool) -> None:
        self._seen = seen
        self._norm_type = norm_type
        self._scale: HostCopy | None = None
        self._skipped = False
        devices: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for slot, measured in enumerate(seen):
            for m in measured:
                for _, vector in m.waiting:
                    devices.setdefault(vector.device, []).append((slot, vector))
        self._waiting = [
            ([slot for slot, _ in parts], copy_to_host([v for _, v in parts], pool)) for parts in devices.values()
        ]

    def scaled_by(self, scale: HostCopy | None) -> OutputNorms:
        """The same, divided by the scale of the loss."""
        self._scale = scale
        return self

    def copies(self) -> list[HostCopy]:
        """Everything that is on its way."""
        return [copy for _, copy in self._waiting] + ([] if self._scale is None else [self._scale])

    def finished(self) -> Finished:
        """The numbers. Waits for what is on its way."""
        numbers: list[list[float]] = [
            [float(m.values[0]) for m in measured if not m.waiting] for measured in self._seen
        ]
        for slots, copy in self._waiting:
            for slot, value in zip(slots, copy.values().tolist(), strict=True):
                numbers[slot].append(value)
        values = np.array([combined(np.array(found), self._norm_type) for found in numbers], dtype=np.float64)
        if self._scale is not None:
            values = values / float(self._scale.values()[0])
        present = np.array([bool(found) for found in numbers], dtype=np.bool_)
        return Finished(values, present, None, self._skipped, None, False, None)


def _first_tensor(output: Any) -> Tensor | None:
    """The tensor that a module is said to put out: the first floating one of a tuple, list, mapping or dataclass."""
    if isinstance(output, Tensor):
        plain = output.is_floating_point() and not hasattr(output, "_local_tensor")
        return output if plain and output.numel() > 0 else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, tuple | list):
        for item in output:
            if (tensor := _first_tensor(item)) is not None:
                return tensor
    return None
