"""What is measured of the slots of a plan: norms of their gradients and of anything else, and histograms.

Each measurement is of this process first, then added up over processes and started to the host; it waits for nothing.
Where processes add up together, none takes another way than the rest: one that fails takes part with nothing.
Knows neither optimizers nor when a step is due, and hands nothing on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor, nn

from tracker_bridge.collector._device import HostCopy, PinnedPool, copy_to_host
from tracker_bridge.collector._distributed import local_gradient, reduce_histograms, reduce_norms
from tracker_bridge.collector._histograms import GradientHistogram, count_on_device
from tracker_bridge.collector._hooks import Held
from tracker_bridge.collector._measure import Measured, Meter
from tracker_bridge.collector._norms import Clip, Measurement
from tracker_bridge.collector._plan import Plan

GradientOf = Callable[[nn.Parameter], Tensor | None]

gradient_in_place: GradientOf = attrgetter("grad")
"""Where torch keeps a gradient."""


class SlotMeter:
    """Measures slots. `rotate`: how many turns share them; `fault` is told of what is not raised."""

    def __init__(
        self,
        norm_type: float,
        rotate: int,
        gradient_of: GradientOf | None,
        bins: int,
        pool: PinnedPool,
        fault: Callable[[Exception], None],
    ) -> None:
        self._norm_type, self._rotate, self._bins = norm_type, rotate, bins
        self.gradient_of = gradient_of or gradient_in_place
        self._pool, self._fault = pool, fault

    def measure(
        self, plan: Plan, parameters: Sequence[nn.Parameter], turn: int
    ) -> tuple[Measured | None, Exception | None]:
        """What this process measures by itself, or why it cannot; neither if the plan has to be made again.

        `parameters`: the parameter of each slot.
        """
        try:
            if plan.sharding is not None:
                if plan.froze(parameters):
                    return None, None
                sharding = plan.sharding
                gradients = self.gradients(plan, parameters, turn)
                local = [local_gradient(sharding, at, gradient) for at, gradient in enumerate(gradients)]
                return plan.meters[turn].measure(local), None
            if self._rotate == 1 and self.gradient_of is gradient_in_place:
                measured = plan.meters[turn].measure(parameters, gradient_in_place)
            else:
                measured = plan.meters[turn].measure(self.gradients(plan, parameters, turn))
            if not measured.complete and plan.froze(parameters):
                return None, None
            return measured, None
        except Exception as error:
            return None, error

    def gradients(self, plan: Plan, parameters: Sequence[nn.Parameter], turn: int) -> list[Tensor | None]:
        """The gradient of each slot of `plan`; None where there is none, or where it is not the slot's turn."""
        if self._rotate == 1:
            return list(map(self.gradient_of, parameters))
        found: list[Tensor | None] = [None] * len(parameters)
        for slot in plan.turns[turn]:
            found[slot] = self.gradient_of(parameters[slot])
        return found

    def on_its_way(
        self,
        plan: Plan,
        local: Measured | None,
        norm_type: float,
        *,
        scales: tuple[HostCopy, ...] = (),
        clip: Clip | None = None,
        post_clip: bool = False,
        differs: tuple[HostCopy, ...] = (),
    ) -> Measurement:
        """Add up over processes what each has measured (None: this one could not), and start it to the host."""
        powers = [] if plan.sharding is None else reduce_norms(plan.sharding, local, norm_type, self._pool)
        count = len(plan.slots)
        measured = local or Measured(np.zeros(count), np.zeros(count, dtype=np.bool_), False)
        return Measurement(
            values=measured.values,
            present=measured.present,
            norm_type=norm_type,
            waiting=tuple((at, copy_to_host([vector], self._pool)) for at, vector in measured.waiting),
            powers=tuple(powers),
            scales=scales,
            clip=clip,
            post_clip=post_clip,
            differs=differs,
            partial=self._rotate > 1,
        )

    def of_slots(self, plan: Plan, tensors: Sequence[Tensor | None], what: str, norm_type: float) -> Measurement:
        """Measure something else of each slot. A process that fails takes part in the collective all the same."""
        local: Measured | None = None
        try:
            if plan.sharding is not None:
                sharding = plan.sharding
                tensors = [local_gradient(sharding, at, tensor) for at, tensor in enumerate(tensors)]
            local = plan.others.setdefault(what, Meter(norm_type)).measure(tensors)
        except Exception as error:
            if plan.sharding is None:
                raise
            self._fault(error)
        return self.on_its_way(plan, local, norm_type)

    def parameters(self, plan: Plan, parameters: Sequence[nn.Parameter], turn: int) -> Measurement:
        """The norms of the chosen parameters as they are now."""
        tensors: list[Tensor | None] = [None] * len(plan.slots)
        for slot in plan.turns[turn]:
            tensors[slot] = parameters[slot].detach()
        return self.of_slots(plan, tensors, "parameters", self._norm_type)

    def histograms(
        self, held: Held, plan: Plan, gradients: Sequence[Tensor | None], scale: Tensor | None
    ) -> list[GradientHistogram]:
        """The histogram of each slot's gradient; of those that this process has no part of there is none."""
        whole: dict[int, Tensor] = {}
        if plan.sharding is not None:
            sharding = plan.sharding
            local: list[Tensor | None] | None = None
            try:
                gradients = local = [local_gradient(sharding, at, gradient) for at, gradient in enumerate(gradients)]
            except Exception as error:
                self._fault(error)  # this process must take part in the collectives all the same
            whole = reduce_histograms(sharding, local, self._bins)
        copied = None if scale is None else copy_to_host([scale], self._pool)
        found = []
        for slot, (name, gradient) in enumerate(zip(plan.table.names, gradients, strict=True)):
            if gradient is not None and gradient.layout == torch.strided:
                numbers = whole[slot] if slot in whole else count_on_device(gradient, self._bins)
                counted = copy_to_host([numbers], self._pool)
                found.append(GradientHistogram(f"gradient_histograms/{name}", held.step, held.time_ns, counted, copied))
        return found
