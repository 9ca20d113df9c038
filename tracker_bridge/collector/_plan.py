"""What is measured, worked out once and kept while the model stays as it is.

A plan keeps no parameter alive: it holds indexes into the model's flat parameter list, weak references that mark it
stale, and the series table that its records refer to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import nn

from tracker_bridge.collector._distributed import Groups, Sharding, sharding_of
from tracker_bridge.collector._measure import Meter
from tracker_bridge.collector._names import block_prefixes, named_parameters
from tracker_bridge.collector._parts import parts_of
from tracker_bridge.collector._select import Choice, Selection, choose
from tracker_bridge.records import SeriesTable


@dataclass(frozen=True, slots=True)
class ClipOrder:
    """Where clipping puts the norms of the slots: `sources[i]` of its vector is the norm of slot `slots[i]`.

    It holds as long as clipping takes the gradients in the order `taken` (indices in the list of clipped parameters).
    """

    taken: list[int]
    slots: npt.NDArray[np.intp]
    sources: npt.NDArray[np.intp]
    present: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Plan:
    """The chosen slots of one model, for the parameters that one optimizer (or group of them) updates.

    `slots[i]` is the index in `flat_parameters(model)` of `table.names[i]`; `distinct` those of all parameters, in
    the order of `model.parameters()`. `everything`: the slots are the flat list itself. `turns` are the positions in
    `slots` that are measured together, in turn, each by its own meter; `others` are the meters of what is measured
    beside gradients. `clip_order` is kept from one clipping of all parameters to the next.
    """

    slots: tuple[int, ...]
    distinct: tuple[int, ...]
    turns: tuple[tuple[int, ...], ...]
    meters: tuple[Meter, ...]
    table: SeriesTable
    ids: list[int]
    frozen: tuple[int, ...]
    members: int
    sharding: Sharding | None
    everything: bool
    others: dict[str, Meter] = field(default_factory=dict)
    clip_order: ClipOrder | None = None
    _stale: bool = False
    _ends: list[weakref.ref[nn.Parameter]] = field(default_factory=list)
    _references: list[weakref.ref[nn.Parameter]] = field(default_factory=list)

    def fits(self, flat: Sequence[nn.Parameter | None], members: int) -> bool:
        """Whether `flat` are the very parameters that were planned for and none was unfrozen.

        One that was frozen since has no gradient any more; `froze` finds it where gradients are missing.
        """
        return (
            not self._stale
            and members == self.members
            and list(map(id, flat)) == self.ids
            and not any(p.requires_grad for i in self.frozen if (p := flat[i]) is not None)
        )

    def froze(self, flat: Sequence[nn.Parameter | None]) -> bool:
        """Whether the parameter of some slot was frozen after planning.

        Its gradient is missing then, so this need be asked only if one is; but always where processes must agree, since
        a gradient may be missing on one of them only.
        """
        return any((p := flat[index]) is not None and not p.requires_grad for index in self.slots)

    def watch(self, flat: Sequence[nn.Parameter | None]) -> None:
        """Become stale when a parameter is freed, lest another one at its address be taken for it."""
        self._references = [weakref.ref(p, self._freed) for p in flat if p is not None]
        ends = dict.fromkeys(self.slots[:1] + self.slots[-1:])
        self._ends = [weakref.ref(p) for index in ends if (p := flat[index]) is not None]

    def ends(self) -> list[nn.Parameter]:
        """The parameters of the first and the last slot, as far as they are alive."""
        found = [reference() for reference in self._ends]
        return [parameter for parameter in found if parameter is not None]

    def _freed(self, _reference: object) -> None:
        self._stale = True


def explain_choices(model: nn.Module, rules: Selection, own: Collection[int] | None) -> list[Choice]:
    """The decision about each parameter of `model`. `own`: ids of the parameters that the optimizer updates."""
    parameters = named_parameters(model)
    choices = choose(rules, parameters, parts_of(parameters, block_prefixes(model)))
    if own is None:
        return choices
    return [
        Choice(c.parameter, False, "not in the attached optimizer")
        if c.selected and id(c.parameter.parameter) not in own
        else c
        for c in choices
    ]


def build_plan(
    model: nn.Module,
    flat: Sequence[nn.Parameter | None],
    rules: Selection,
    own: Collection[int] | None,
    members: int,
    meters: Sequence[Meter],
    groups: Groups,
    table_for: Callable[[Sequence[Choice], tuple[str, ...]], SeriesTable],
) -> Plan:
    """Plan for `model` as it is now; `table_for` names the slots (given the chosen ones and the block prefixes)."""
    if own is not None and not any(p is not None and id(p) in own for p in flat):
        own = None  # an optimizer of copies (float32 masters, flat buffers): its parameters are none of the model's
    choices = explain_choices(model, rules, own)
    chosen = [c for c in choices if c.selected]
    count = len(chosen)
    plan = Plan(
        slots=tuple(c.parameter.index for c in chosen),
        distinct=tuple(c.parameter.index for c in choices),
        turns=tuple(tuple(range(turn, count, len(meters))) for turn in range(len(meters))),
        meters=tuple(meters),
        table=table_for(chosen, block_prefixes(model)),
        ids=list(map(id, flat)),
        frozen=tuple(i for i, p in enumerate(flat) if p is not None and not p.requires_grad),
        members=members,
        everything=[c.parameter.index for c in chosen] == list(range(len(flat))),
        sharding=sharding_of([c.parameter.parameter for c in chosen], groups),
    )
    plan.watch(flat)
    return plan
