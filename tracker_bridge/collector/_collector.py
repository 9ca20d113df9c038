"""The gradient-norm collector: the public face, and the one place where choosing, measuring and recording meet.

It may read gradients and register hooks on optimizers; it never changes a gradient (but for `clip_grad_norm_`, which
does what torch's does), never waits for a device, and raises only for misuse, never from inside a training step.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tracker_bridge.collector._activations import ActivationProbe
from tracker_bridge.collector._backward import InBackward
from tracker_bridge.collector._clip import Norms as ClipNorms
from tracker_bridge.collector._clip import apply_clip, measure_for_clip, raise_if_nonfinite, torch_clip_grad_norm_
from tracker_bridge.collector._device import HostCopy, PinnedPool, copy_to_host
from tracker_bridge.collector._distributed import Groups
from tracker_bridge.collector._explain import Explanation
from tracker_bridge.collector._histograms import GradientHistogram
from tracker_bridge.collector._hooks import Attachment, Held, outside_of_dynamo, unwrap_optimizer
from tracker_bridge.collector._measure import Measured, Meter, joined
from tracker_bridge.collector._names import flat_parameters, has_fsdp1, named_parameters
from tracker_bridge.collector._norms import Clip, GradientNorms, Measurement, Ratio, ZeroFraction
from tracker_bridge.collector._outlet import Outlet
from tracker_bridge.collector._plan import ClipOrder, Plan, build_plan
from tracker_bridge.collector._select import ModulePattern, Pattern, module_chooser, selection, unmatched
from tracker_bridge.collector._slots import SlotMeter
from tracker_bridge.collector._tamper import TamperWatch
from tracker_bridge.collector._updates import group_of, needs_copy, update_of
from tracker_bridge.collector._updates import local as local_part
from tracker_bridge.records import Step

Patterns = Union[Pattern, Iterable[Pattern]]

_PLAIN = frozenset({Tensor, nn.Parameter, type(None)})


@dataclass(frozen=True, slots=True)
class _Update:
    """What was kept from before an optimizer step: copies of shards by slot, where needed, and parameter norms.

    `copies` None: they could not be made. The collectives that other processes wait for take place all the same.
    """

    step: Step
    turn: int
    copies: dict[int, Tensor] | None
    parameters: Measurement


class GradientNormCollector:
    """Per-layer gradient norms of `model`, before clipping, every `every_n_steps` optimizer steps.

    Args:
        model: the model, wrapped (DDP, torch.compile, ...) or not.
        every_n_steps: collect at optimizer steps 0, n, 2n, ...
        include: globs on clean names or module paths, `re:` regexes, module classes, or callables
            `(name, parameter) -> bool`; empty: everything. Frozen parameters are left out.
        exclude: the same; wins over `include`.
        parts: named parts of a transformer, added to `include`: attention, mlp, embeddings, norms, head, last.
        norm_type: p of the norm, > 0, also `math.inf`.
        sink: called with each `GradientNorms` on the training thread, perhaps before its values reached the host.
        rotate: k > 1 measures one k-th of the layers at each due step, in turn.
        gradient_of: where a parameter's gradient is, for frameworks that keep it elsewhere; default `parameter.grad`.
        group_by: name -> group, evaluated once per table for a grouping that only this process can compute.
        parameter_norms: also record the norm of each chosen parameter before the step (kind `parameters`).
        update_ratio: also record the norm of what the step adds to a parameter over the parameter's (`update_ratio`).
        zero_fraction: also record the share of each gradient's elements that are exactly 0 (`zero_fraction`).
        activations: modules whose outputs are recorded (`activations`), with the gradients that reach these outputs
            (`activation_gradients`): globs on clean module paths, `re:` regexes, classes, or `(path, module) -> bool`.
            Of this process's batch; without micro-batches apart; nothing inside a compiled region.
        histogram_sink: called with a `GradientHistogram` of each chosen layer at each due step.
        histogram_bins: how many bins these have.
        step: returns the number of the current step, instead of counting optimizer steps. It may be asked several
            times a step.
        on_fault: called with each exception inside the collector, instead of one warning per kind.

    Raises:
        TypeError, ValueError: misuse, naming the argument.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every_n_steps: int = 1,
        include: Patterns = (),
        exclude: Patterns = (),
        parts: str | Iterable[str] = (),
        norm_type: float = 2.0,
        sink: Callable[[GradientNorms], object] | None = None,
        rotate: int = 1,
        gradient_of: Callable[[nn.Parameter], Tensor | None] | None = None,
        group_by: Callable[[str], str] | None = None,
        parameter_norms: bool = False,
        update_ratio: bool = False,
        zero_fraction: bool = False,
        activations: ModulePattern | Iterable[ModulePattern] = (),
        histogram_sink: Callable[[GradientHistogram], object] | None = None,
        histogram_bins: int = 64,
        step: Callable[[], Step] | None = None,
        on_fault: Callable[[Exception], object] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        self.every_n_steps = _positive("every_n_steps", every_n_steps)
        self.norm_type = _norm_type(norm_type)
        for name, value in (
            ("sink", sink),
            ("gradient_of", gradient_of),
            ("group_by", group_by),
            ("histogram_sink", histogram_sink),
            ("step", step),
        ):
            if value is not None and not callable(value):
                raise TypeError(f"{name}: expected a callable, got {type(value).__name__}")
        self.step_of = step
        self.update_ratio = bool(update_ratio)
        self.faults: Counter[str] = Counter()
        self._model = model
        self._rules = selection(include, exclude, parts)
        self._rotate = _positive("rotate", rotate)
        self._gradient_of = gradient_of
        self._on_fault = on_fault
        self._counted = 0
        self._attachments: list[Attachment] = []
        self._plans: dict[Attachment | None, Plan] = {}
        self._note: tuple[Clip, dict[Attachment, int]] | None = None
        self._by_clip: GradientNorms | None = None
        self._in_backward: InBackward | None = None
        self._tamper: dict[Attachment | None, TamperWatch] = {}
        self._parameter_norms = bool(parameter_norms)
        self._zero_fraction = bool(zero_fraction)
        self._probe: ActivationProbe | None = None
        if activations != ():
            self._probe = ActivationProbe(module_chooser(activations, "activations"), self.norm_type, self.fault)
        self._updating: dict[Attachment, _Update] = {}
        self._pool = PinnedPool()
        bins = _positive("histogram_bins", histogram_bins)
        self._slots = SlotMeter(self.norm_type, self._rotate, gradient_of, bins, self._pool, self.fault)
        self._outlet = Outlet(sink, histogram_sink, group_by, self.norm_type, self._rotate > 1, self.fault)
        self._groups: Groups = {}
        self._refuse_fsdp1()
        if not _distributed():
            for message in unmatched(self._rules, named_parameters(model)):
                warnings.warn(message, stacklevel=2)
        self._watch_activations(True)  # step 0 is due

    # What users call ----------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """How many optimizer steps were seen; the next one is recorded under this number. Set it to resume."""
        counts = [attachment.step for attachment in self._attachments]
        if self._in_backward is not None:
            counts.append(self._in_backward.step)
        return max(counts, default=self._counted)

    @step.setter
    def step(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"step: expected a number of steps >= 0, got {value!r}")
        self._counted = value
        for attachment in self._attachments:
            attachment.step = value
            self.coming(attachment)
        if self._in_backward is not None:
            self._in_backward.step = value

    def attach(
        self, optimizer: Optimizer | Sequence[Optimizer], scaler: Any = None, *, name: str | None = None
    ) -> Attachment:
        """Collect at the steps of `optimizer`: its parameters, right before it uses their gradients.

        A sequence are optimizers that step together, in this order (say one for matrices and one for the rest);
        what is attached in another call is recorded apart, under `name`. With `scaler` a step that it skips is
        recorded as skipped; without, an unfused optimizer's skipped steps are not seen at all.

        Returns:
            A handle; its `detach()` ends the watching.
        """
        given = tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)
        if not given:
            raise ValueError("optimizer: an empty sequence")
        attachment = Attachment(self, tuple(unwrap_optimizer(o) for o in given), scaler, name, self._counted)
        self._attachments.append(attachment)
        self._plans.clear()
        self._watch_for_tampering(None, False)
        self.coming(attachment)
        return attachment

    def attach_in_backward(self) -> InBackward:
        """Collect while backward runs, for optimizers that step inside it and free the gradients at once.

        Call it before the optimizer registers its own hooks. Each backward pass counts as one step. It costs an
        operation per layer at a due step, and none otherwise.

        Returns:
            A handle; its `detach()` ends the watching.
        """
        if self._in_backward is not None or self._gradient_of is not None or self._rotate > 1:
            raise ValueError("attach_in_backward: only once, and neither with gradient_of nor with rotate")
        if self._planned(None)[0].sharding is not None:
            raise ValueError("attach_in_backward: gradients that are sharded over processes are only summed at a step")
        self._in_backward = InBackward(self, self._counted)
        return self._in_backward

    def detach(self) -> None:
        """Remove every hook. What was attached is as before."""
        for attachment in list(self._attachments):
            attachment.detach()
        self._watch_for_tampering(None, False)
        self._watch_activations(False)
        if self._in_backward is not None:
            backward, self._in_backward = self._in_backward, None
            backward.detach()
            self._counted = max(self._counted, backward.step)

    def collect(self, step: Step | None = None) -> GradientNorms | None:
        """Measure now, between backward and the optimizer's step, for scripts that attach no optimizer.

        Without an attached optimizer each call counts as one optimizer step. Returns None if the step is not due or
        nothing could be measured (then counted in `faults`).
        """
        if self._in_backward is not None:
            self._in_backward.finish()
            return None
        attachment = self._attachments[0] if len(self._attachments) == 1 else None
        if self._by_clip is not None and not self._attachments:
            norms, self._by_clip = self._by_clip, None
            return norms
        counted = attachment.step if attachment is not None else self._counted
        if not self._attachments:
            self._counted += 1
        number = step if step is not None else self.due(counted)
        held = None
        if number is not None and not number % self.every_n_steps:
            held = self.held_for(attachment, number, attachment.scale() if attachment is not None else None)
        if not self._attachments:
            due_next = self.due(self._counted) is not None
            self._watch_for_tampering(None, due_next)
            self._watch_activations(due_next)
        if held is None:
            return None
        for each in self._attachments:
            each.collected = each.step
        return self._hand_on(held, None, False)

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        *,
        parameters: Iterable[Tensor] | None = None,
    ) -> Tensor:
        """`torch.nn.utils.clip_grad_norm_` of the model's parameters, and at a due step the norms it is made of.

        The result and the gradients are bitwise torch's. The recorded norms are torch's own, from before clipping;
        they cost no second pass over the gradients.

        Args:
            max_norm: as torch's.
            norm_type: as torch's. If it is not the collector's, the collector measures its own norms first.
            error_if_nonfinite: as torch's; the step is recorded before the error is raised.
            parameters: which to clip, default all of the model, in the order of `model.parameters()`.

        Raises:
            RuntimeError: the total is not finite and `error_if_nonfinite`.
            ValueError: the collector reads gradients through `gradient_of`, which torch's clipping does not.
        """
        if self._gradient_of is not None:
            raise ValueError(
                "clip_grad_norm_ clips parameter.grad, but gradient_of says gradients are elsewhere; use note_clip"
            )
        chosen = None if parameters is None else list(parameters)
        target = self._clip_target(chosen)
        counted = target.step if target is not None else self.step
        number = self.due(counted)
        whole = chosen is None
        if chosen is None:
            chosen = self._all_parameters(target)
        if number is None:
            if not self._attachments:
                self._counted += 1
            return torch_clip_grad_norm_(chosen, max_norm, norm_type, error_if_nonfinite)
        with torch.no_grad():
            norms = measure_for_clip(chosen, norm_type)
            try:
                self._record_clip(target, number, chosen, whole, norms, float(max_norm), float(norm_type))
            except Exception as error:
                self.fault(error)
            if error_if_nonfinite:
                raise_if_nonfinite(norms.total, norm_type)
            apply_clip(chosen, max_norm, norms.total)
            return norms.total

    def note_clip(self, total_norm: Tensor | float, max_norm: float, *, optimizer: Optimizer | None = None) -> None:
        """Say that the script clipped by `total_norm` (what torch's `clip_grad_norm_` returned) to `max_norm`.

        The norms from before clipping are then recovered from those after it. Call it between clipping and the
        optimizer's step. `optimizer`: whose gradients, where several are attached that step one after another.
        """
        try:
            total = total_norm if isinstance(total_norm, Tensor) else torch.tensor(float(total_norm), device="cpu")
            wanted = None if optimizer is None else unwrap_optimizer(optimizer)
            steps = {a: a.step for a in self._attachments if wanted is None or any(o is wanted for o in a.optimizers)}
            if self._attachments and not any(self.due(step) is not None for step in steps.values()):
                return
            self._note = (Clip(copy_to_host([_whole(total)], self._pool), float(max_norm), undo=True), steps)
        except Exception as error:
            self.fault(error)

    def explain(self) -> Explanation:
        """Each parameter, whether it is measured, and why or why not."""
        own = set().union(*(a.own() for a in self._attachments)) if self._attachments else None
        return Explanation.of(self._model, self._rules, own)

    # What attachments call: none of it raises ----------------------------------------------------------------------

    def due(self, counted: int) -> Step | None:
        """The number of the coming step if it is to be collected, given how many steps were counted before it."""
        try:
            number = counted if self.step_of is None else self.step_of()
            return None if number % self.every_n_steps else number
        except Exception as error:
            self.fault(error)
            return None

    def held_for(self, attachment: Attachment | None, step: Step, scale: Tensor | None) -> Held | None:
        """What clipping measured for this step, or a new measurement; None if there is nothing to hand on."""
        try:
            if attachment is not None:
                held, attachment.held = attachment.held, None
                if attachment.collected == attachment.step or (held is not None and held.measurement is None):
                    return None
                if held is not None:
                    return held
            with torch.set_grad_enabled(False):  # as `no_grad`, in half the time
                return self._measured(attachment, step, scale)
        except Exception as error:
            self.fault(error)
            return None

    def release(self, held: Held, found_inf: Tensor | None, skipped: bool) -> None:
        """Hand a measurement to the sink."""
        try:
            self._hand_on(held, found_inf, skipped)
        except Exception as error:
            self.fault(error)

    def coming(self, attachment: Attachment) -> None:
        """The step after this one begins: watch one gradient for changes by the script if it is due."""
        due = self.step_of is not None or not attachment.step % self.every_n_steps
        self._watch_for_tampering(attachment, due)
        self._watch_activations(due)

    def backward_slots(self) -> list[nn.Parameter]:
        """The parameters to watch in backward, one per slot of the plan."""
        return list(self._planned(None)[1])

    def backward_done(self, step: Step, measured: Sequence[Measured | None]) -> None:
        """Record what was measured during one backward pass, slot by slot."""
        try:
            plan = self._plans[None]
            measurement = self._slots.on_its_way(plan, joined(measured), self.norm_type)
            self._hand_on(Held(step, time.time_ns(), plan.table, measurement), None, False)
        except Exception as error:
            self.fault(error)

    def fault(self, error: Exception) -> None:
        """Count an exception of the collector or of the sink; report it by `on_fault`, or by one warning per kind."""
        kind = type(error).__name__
        self.faults[kind] += 1
        with contextlib.suppress(Exception):
            if self._on_fault is not None:
                self._on_fault(error)
            elif self.faults[kind] == 1:
                warnings.warn(
                    f"gradient norms were not collected ({kind}: {error}); training is not affected, further such "
                    "faults are only counted",
                    stacklevel=2,
                )

    def forget(self, attachment: Attachment) -> None:
        """An attachment was detached; its count goes on."""
        if attachment in self._attachments:
            self._counted = max(self._counted, attachment.step)
            self._attachments.remove(attachment)
            self._watch_for_tampering(attachment, False)
            self._tamper.pop(attachment, None)
            self._plans.clear()

    # Measuring ----------------------------------------------------------------------------------------------------

    @outside_of_dynamo
    def _measured(self, attachment: Attachment | None, step: Step, scale: Tensor | None) -> Held:
        turn = int(step // self.every_n_steps) % self._rotate
        plan, parameters, local, fault = self._measured_here(attachment, turn)
        if fault is not None:
            if plan.sharding is None:
                raise fault
            self.fault(fault)  # this process must take part in the collective all the same
        clip = self._take_note(attachment)
        changed, differs = self._tampered(attachment)
        measurement = self._slots.on_its_way(
            plan,
            local,
            self.norm_type,
            scales=() if scale is None else (copy_to_host([scale], self._pool),),
            clip=clip,
            post_clip=clip is None and changed,
            differs=differs if clip is None else (),
        )
        held = Held(step, time.time_ns(), plan.table, measurement)
        self._measure_more(held, plan, parameters, turn, scale)
        return held

    def _measured_here(
        self, attachment: Attachment | None, turn: int
    ) -> tuple[Plan, Sequence[nn.Parameter], Measured | None, Exception | None]:
        """The plan, the parameter of each slot, and the norms of their gradients or why there are none."""
        plan = self._plans.get(attachment)
        watch = self._tamper.get(attachment)
        # Where backward has not reached the watched parameters of the optimizer, the model may have others by now.
        if plan is not None and attachment is not None and watch is not None and watch.saw_backward():
            parameters = plan.listed(attachment.parameters())
            if parameters is not None:
                local, fault = self._slots.measure(plan, parameters, turn)
                # What is missing now and was there at the last look may have left the model.
                if local is not None and (local.complete or local.present is plan.present):
                    return plan, parameters, local, fault
        flat = flat_parameters(self._model)
        plan = self._plan_for(attachment, flat)
        parameters = plan.parameters(flat)
        local, fault = self._slots.measure(plan, parameters, turn)
        if local is None and fault is None:
            del self._plans[attachment]
            plan = self._plan_for(attachment, flat)
            parameters = plan.parameters(flat)
            local, fault = self._slots.measure(plan, parameters, turn)
        plan.looked(None if local is None else local.present)
        return plan, parameters, local, fault

    def _measure_more(
        self, held: Held, plan: Plan, parameters: Sequence[nn.Parameter], turn: int, scale: Tensor | None
    ) -> None:
        """What is measured beside gradient norms, if anything."""
        if self._parameter_norms:
            measured = self._slots.parameters(plan, parameters, turn)
            held.more.append((self._outlet.beside(plan.table, "parameters"), measured))
        if not self._zero_fraction and not self._outlet.takes_histograms:
            return
        gradients = self._slots.gradients(plan, parameters, turn)
        if self._zero_fraction:
            nonzero = self._slots.of_slots(plan, gradients, "zero_fraction", 0.0)
            numel = np.array(plan.table.numel, dtype=np.float64)
            held.more.append((self._outlet.beside(plan.table, "zero_fraction"), ZeroFraction(nonzero, numel)))
        if self._outlet.takes_histograms:
            held.histograms += self._slots.histograms(held, plan, gradients, scale)

    # Updates ------------------------------------------------------------------------------------------------------

    def before_update(self, attachment: Attachment, step: Step) -> None:
        """Keep what is needed to tell what the coming step adds to each parameter."""
        try:
            with torch.no_grad():
                plan, parameters = self._planned(attachment)
                turn = int(step // self.every_n_steps) % self._rotate
                copies = self._copies(attachment, plan, parameters, turn)
                before = self._slots.parameters(plan, parameters, turn)
                self._updating[attachment] = _Update(step, turn, copies, before)
        except Exception as error:
            self.fault(error)

    def _copies(
        self, attachment: Attachment, plan: Plan, parameters: Sequence[nn.Parameter], turn: int
    ) -> dict[int, Tensor] | None:
        """Copies of this process's part of the parameters whose update cannot be told otherwise; None if it fails."""
        try:
            owners = group_of(attachment.optimizers)
            mine = [(slot, parameters[slot]) for slot in plan.turns[turn]]
            return {
                slot: local_part(p.detach()).clone()
                for slot, p in mine
                if id(p) in owners and needs_copy(p, *owners[id(p)])
            }
        except Exception as error:
            self.fault(error)
            return None

    def after_update(self, attachment: Attachment, found_inf: Tensor | None) -> None:
        """Record how large the update was beside each parameter."""
        update = self._updating.pop(attachment, None)
        if update is None:
            return
        try:
            with torch.no_grad():
                plan, parameters = self._planned(attachment)
                here = self._updates_here(attachment, plan, parameters, update)
                over = self._slots.on_its_way(plan, here, self.norm_type)
                if found_inf is not None:
                    over = over.but(found_inf=copy_to_host([found_inf], self._pool))
                table = self._outlet.beside(plan.table, "update_ratio")
                self._outlet.give(GradientNorms(update.step, time.time_ns(), table, Ratio(over, update.parameters)))
        except Exception as error:
            self.fault(error)

    def _updates_here(
        self, attachment: Attachment, plan: Plan, parameters: Sequence[nn.Parameter], update: _Update
    ) -> Measured | None:
        """The norm of what was added to this process's part of each parameter, one after another; None if it fails."""
        if update.copies is None:
            return None
        try:
            owners = group_of(attachment.optimizers)
            parts: list[Measured | None] = [None] * len(plan.slots)
            for slot in plan.turns[update.turn]:
                p = parameters[slot]
                gradient = None if id(p) not in owners else self._slots.gradient_of(p)
                if gradient is not None:
                    added = update_of(p, gradient, *owners[id(p)], update.copies.get(slot))
                    parts[slot] = Meter(self.norm_type).measure([added])
            return joined(parts)
        except Exception as error:
            self.fault(error)
            return None

    # Activations --------------------------------------------------------------------------------------------------

    def _watch_activations(self, due: bool) -> None:
        if self._probe is None:
            return
        try:
            if due:
                self._probe.arm(self._model)
            else:
                self._probe.disarm()
        except Exception as error:
            self.fault(error)

    def _give_activations(self, held: Held) -> None:
        """Record what the watched modules put out since the last due step, and the gradients that reached it."""
        taken = None if self._probe is None else self._probe.take(self._pool)
        if taken is None:
            return
        names, outputs, gradients = taken
        scale = next((s for a in self._attachments if (s := a.loss_scale()) is not None), None)
        gradients.scaled_by(None if scale is None else copy_to_host([scale], self._pool))
        for kind, pending in (("activations", outputs), ("activation_gradients", gradients)):
            table = self._outlet.table_of(kind, "", names, (0,) * len(names), ())
            self._outlet.give(GradientNorms(held.step, held.time_ns, table, pending))

    def _planned(self, attachment: Attachment | None) -> tuple[Plan, Sequence[nn.Parameter]]:
        """The plan for the model as it is now, and the parameter of each slot."""
        flat = flat_parameters(self._model)
        plan = self._plan_for(attachment, flat)
        return plan, plan.parameters(flat)

    def _plan_for(self, attachment: Attachment | None, flat: Sequence[nn.Parameter | None]) -> Plan:
        held = None if attachment is None else attachment.parameters()
        plan = self._plans.get(attachment)
        if plan is None or not plan.fits(flat, -1 if held is None else len(held)):
            self._refuse_fsdp1()
            scope = self._scope(attachment)
            plan = self._plans[attachment] = build_plan(
                self._model,
                flat,
                self._rules,
                held,
                [Meter(self.norm_type) for _ in range(self._rotate)],
                self._groups,
                lambda chosen, blocks: self._outlet.table(scope, chosen, blocks),
            )
        return plan

    def _scope(self, attachment: Attachment | None) -> str:
        """What the summary series of an attachment are called apart by; nothing where there is only one."""
        if attachment is None or len(self._attachments) == 1:
            return (attachment.name or "") if attachment is not None else ""
        return attachment.name or f"optimizer_{self._attachments.index(attachment)}"

    def _hand_on(self, held: Held, found_inf: Tensor | None, skipped: bool) -> GradientNorms | None:
        measurement, held.measurement = held.measurement, None
        if measurement is None or (not held.table.names and measurement.clip is None):
            return None
        if found_inf is not None:
            measurement = measurement.but(found_inf=copy_to_host([found_inf], self._pool))
        if skipped:
            measurement = measurement.but(skipped=True)
        norms = GradientNorms(held.step, held.time_ns, held.table, measurement)
        self._outlet.give(norms)
        for table, pending in held.more:
            self._outlet.give(GradientNorms(held.step, held.time_ns, table, pending))
        for histogram in held.histograms:
            self._outlet.give_histogram(histogram)
        self._give_activations(held)
        return norms

    # The script's own clipping ------------------------------------------------------------------------------------

    def _watch_for_tampering(self, attachment: Attachment | None, due: bool) -> None:
        """Watch the gradients of the first and the last slot while a step is due."""
        try:
            watch = self._tamper.get(attachment)
            if not due:
                if watch is not None:
                    watch.disarm()
                return
            if self._gradient_of is None:
                if watch is None:
                    watch = self._tamper[attachment] = TamperWatch()
                watch.arm(self._plans.get(attachment) or self._planned(attachment)[0])
        except Exception as error:
            self.fault(error)

    def _tampered(self, attachment: Attachment | None) -> tuple[bool, tuple[HostCopy, ...]]:
        """Whether the gradients were changed after backward by something other than the scaler's unscaling.

        Either it is known now, or it is as soon as the returned flags have reached the host.
        """
        watch = self._tamper.get(attachment)
        if watch is None:
            return False, ()
        changes = watch.changes()
        if attachment is not None and attachment.unscaled():
            return changes.operations > 1, ()
        return changes.operations > 0, tuple([copy_to_host([flag], self._pool) for flag in changes.differs])

    # Clipping -----------------------------------------------------------------------------------------------------

    def _take_note(self, attachment: Attachment | None) -> Clip | None:
        if self._note is None:
            return None
        clip, steps = self._note
        if attachment is not None and steps.get(attachment) != attachment.step:
            return None
        self._note = None
        return clip

    def _clip_target(self, parameters: Sequence[Tensor] | None) -> Attachment | None:
        """The attachment that is clipped alone; None: all of them, or none is attached."""
        if len(self._attachments) == 1:
            return self._attachments[0]
        if parameters is None:
            return None
        ids = {id(p) for p in parameters}
        touched = [a for a in self._attachments if not ids.isdisjoint(a.own())]
        return touched[0] if len(touched) == 1 else None

    def _all_parameters(self, target: Attachment | None) -> list[Tensor]:
        """What `model.parameters()` yields, in its order."""
        try:
            flat = flat_parameters(self._model)
            return [flat[i] for i in self._plan_for(target, flat).distinct]  # type: ignore[misc]
        except Exception as error:
            self.fault(error)
            return list(self._model.parameters())

    def _record_clip(
        self,
        target: Attachment | None,
        step: Step,
        parameters: Sequence[Tensor],
        whole: bool,
        norms: ClipNorms,
        max_norm: float,
        norm_type: float,
    ) -> None:
        """Keep what clipping measured until the optimizer steps; record it at once where none is attached."""
        flat = flat_parameters(self._model)
        plan = self._plan_for(target, flat)
        scale = target.scale() if target is not None else None
        clip = Clip(copy_to_host([_whole(norms.total)], self._pool), max_norm, undo=False)
        if norm_type != self.norm_type:
            held = self._measured(target, step, scale)
            assert held.measurement is not None
            held.measurement = held.measurement.but(clip=clip)
        else:
            order = plan.clip_order
            if not whole or order is None or order.taken != norms.taken:
                order = _clip_order(plan, flat, parameters, norms.taken)
                plan.clip_order = order if whole else None
            measurement = Measurement(
                values=np.zeros(len(plan.slots)),
                present=order.present,
                norm_type=self.norm_type,
                picks=((order.slots, order.sources, copy_to_host([_whole(norms.each)], self._pool)),),
                scales=() if scale is None else (copy_to_host([scale], self._pool),),
                clip=clip,
            )
            held = Held(step, time.time_ns(), plan.table, measurement)
            turn = int(step // self.every_n_steps) % self._rotate
            self._measure_more(held, plan, plan.parameters(flat), turn, scale)
        covered = [target] if target is not None else self._attachments
        for attachment in covered:
            attachment.held = held
        if not covered:
            self._counted += 1
            self._by_clip = self._hand_on(held, None, False)

    def _refuse_fsdp1(self) -> None:
        if has_fsdp1(self._model):
            raise ValueError(
                "model: it is wrapped by FullyShardedDataParallel (FSDP1), whose gradients are slices of a flat "
                "parameter that differ from rank to rank; shard it with torch.distributed.fsdp.fully_shard instead"
            )


def _clip_order(
    plan: Plan, flat: Sequence[nn.Parameter | None], parameters: Sequence[Tensor], taken: list[int]
) -> ClipOrder:
    slot_of = {id(flat[index]): slot for slot, index in enumerate(plan.slots)}
    found = [(slot_of[id(parameters[i])], at) for at, i in enumerate(taken) if id(parameters[i]) in slot_of]
    slots = np.array([slot for slot, _ in found], dtype=np.intp)
    present = np.zeros(len(plan.slots), dtype=np.bool_)
    present[slots] = True
    return ClipOrder(taken, slots, np.array([at for _, at in found], dtype=np.intp), present)


def _whole(tensor: Tensor) -> Tensor:
    """The local tensor behind a replicated DTensor, anything else as it is."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")
    return value


def _norm_type(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"norm_type: expected a number > 0 or inf, got {value!r}") from None
    if not number > 0:
        raise ValueError(f"norm_type: expected a number > 0 or inf, got {value!r}")
    return number
