"""What is measured, worked out once and kept while the model stays as it is.

A plan keeps no parameter alive: it holds indexes into the model's flat parameter list and into that of the optimizers,
weak references that mark it stale, and the series table that its records refer to.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from tracker_bridge.collector._distributed import Groups, Sharding, sharding_of
from tracker_bridge.collector._measure import Meter, picker
from tracker_bridge.collector._names import block_prefixes, named_parameters
from tracker_bridge.collector._parts import parts_of
from tracker_bridge.collector._select import Choice, Selection, choose
from tracker_bridge.records import SeriesTable

_LOOK_AFTER = 16
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ClipOrder:
    """Where clipping puts the norms of the slots: `sources[i]` of its vector is the norm of slot `slots[i]`.

    It holds as long as clipping takes the gradients in the order `taken` (indices in the list of clipped parameters).
    """

    taken: list[int]
    slots: npt.NDArray[np.intp]
    sources: npt.NDArray[np.intp]
    present: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Listing:
    """Where the slots are in the list of the parameters that the optimizers hold.

    `first` and `last` are the ids of its ends, `frozen` the positions of what had no gradient; `pick` makes the slots
    of it (None: they are the list).
    """

    first: int
    last: int
    frozen: tuple[int, ...]
    pick: Callable[[Sequence[Any]], Sequence[Any]] | None


@dataclass(slots=True)
class Plan:
    """The chosen slots of one model, for the parameters that one optimizer (or group of them) updates.

    `slots[i]` is the index in `flat_parameters(model)` of `table.names[i]`; `distinct` those of all parameters, in
    the order of `model.parameters()`. `everything`: the slots are the flat list itself. `turns` are the positions in
    `slots` that are measured together, in turn, each by its own meter; `others` are the meters of what is measured
    beside gradients. `clip_order` is kept from one clipping of all parameters to the next.

    `listing` serves in between the looks at the model (None: look each time); `present` is what had a gradient
    at the last look.
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
    listing: Listing | None = None
    present: npt.NDArray[np.bool_] | None = None
    _unlooked: int = 0
    _last_look: float = 0.0
    stale: bool = False
    _ends: list[weakref.ref[nn.Parameter]] = field(default_factory=list)
    _references: list[weakref.ref[nn.Parameter]] = field(default_factory=list)

    def fits(self, flat: Sequence[nn.Parameter | None], members: int) -> bool:
        """Whether `flat` are the very parameters that were planned for and none was unfrozen.

        One that was frozen since has no gradient any more; `froze` finds it where gradients are missing.
        """
        return (
            not self.stale
            and members == self.members
            and list(map(id, flat)) == self.ids
            and not any(p.requires_grad for i in self.frozen if (p := flat[i]) is not None)
        )

    def parameters(self, flat: Sequence[nn.Parameter | None]) -> Sequence[nn.Parameter]:
        """The parameter of each slot."""
        return flat if self.everything else [flat[index] for index in self.slots]  # type: ignore[return-value, misc]

    def listed(self, held: Sequence[nn.Parameter]) -> Sequence[nn.Parameter] | None:
        """The parameter of each slot, found among those that the optimizers hold, without a look at the model.

        That look costs as much as half of the norms, and a model whose optimizer goes on has hardly changed: it is
        taken every `_LOOK_AFTER` measurements or `_LOOK_SECONDS`, and where the caller finds a gradient missing. Until
        then a slot stands for a place in the optimizers' lists, whatever was put there for a parameter that lives on.
        None: it is time for it, the lists are longer, shorter or all of others, or what was frozen is no more.
        """
        listing = self.listing
        if listing is None or self.stale or len(held) != self.members:
            return None
        if self._unlooked >= _LOOK_AFTER or time.monotonic() - self._last_look > _LOOK_SECONDS:
            return None
        if id(held[0]) != listing.first or id(held[-1]) != listing.last:
            return None
        if any(held[position].requires_grad for position in listing.frozen):
            return None
        self._unlooked += 1
        return held if listing.pick is None else listing.pick(held)

    def looked(self, present: npt.NDArray[np.bool_] | None) -> None:
        """The model was looked at, and these slots had a gradient."""
        self.present = present
        self._unlooked = 0
        self._last_look = time.monotonic()

    def froze(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether the parameter of some slot was frozen after planning.

        Its gradient is missing then, so this need be asked only if one is; but always where processes must agree, since
        a gradient may be missing on one of them only.
        """
        return not all(p.requires_grad for p in parameters)

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
        self.stale = True


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
    held: Sequence[nn.Parameter] | None,
    meters: Sequence[Meter],
    groups: Groups,
    table_for: Callable[[Sequence[Choice], tuple[str, ...]], SeriesTable],
) -> Plan:
    """Plan for `model` as it is now, and for what the optimizers hold (`held`; None: all of the model).

    `table_for` names the slots (given the chosen ones and the block prefixes).
    """
    own = None if held is None else set(map(id, held))
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
        members=-1 if held is None else len(held),
        everything=[c.parameter.index for c in chosen] == list(range(len(flat))),
        sharding=sharding_of([c.parameter.parameter for c in chosen], groups),
    )
    if held and own is not None and plan.sharding is None:
        plan.listing = _listing(held, [id(c.parameter.parameter) for c in chosen])
    plan.watch(flat)
    return plan


def _listing(held: Sequence[nn.Parameter], slots: Sequence[int]) -> Listing:
    at = {id(p): position for position, p in enumerate(held)}
    frozen = tuple(position for position, p in enumerate(held) if not p.requires_grad)
    places = [at[number] for number in slots]
    same = places == list(range(len(held)))
    return Listing(id(held[0]), id(held[-1]), frozen, None if same else picker(places))
