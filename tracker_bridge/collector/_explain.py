"""Why each parameter is or is not measured, as rows and as a table to read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from tracker_bridge.collector._names import block_prefixes, full_numel, named_parameters
from tracker_bridge.collector._parts import parts_of
from tracker_bridge.collector._plan import explain_choices
from tracker_bridge.collector._select import Selection, unmatched


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter. `parts`: the parts of a transformer that it is in; `aliases`: other names that select it."""

    name: str
    selected: bool
    reason: str
    numel: int
    parts: tuple[str, ...]
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation(Sequence[Row]):
    """The rows in registration order; `str()` is a table. `notes` name patterns that match nothing."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @staticmethod
    def of(model: nn.Module, rules: Selection, own: Collection[int] | None) -> Explanation:
        """Explain the decisions about `model` as it is now; `own`: ids of the parameters of the optimizers."""
        parameters = named_parameters(model)
        parts = parts_of(parameters, block_prefixes(model))
        rows = tuple(
            Row(
                name=choice.parameter.name,
                selected=choice.selected,
                reason=choice.reason,
                numel=full_numel(choice.parameter.parameter),
                parts=tuple(sorted(parts[choice.parameter.name])),
                aliases=choice.parameter.aliases,
            )
            for choice in explain_choices(model, rules, own)
        )
        return Explanation(rows, tuple(unmatched(rules, parameters)))

    @property
    def selected(self) -> tuple[str, ...]:
        """The names that are measured."""
        return tuple(row.name for row in self.rows if row.selected)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __str__(self) -> str:
        cells = [("layer", "measured", "why", "elements", "parts")]
        cells += [
            (r.name, "yes" if r.selected else "no", r.reason, f"{r.numel:,}", ", ".join(r.parts)) for r in self.rows
        ]
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        lines.append(f"{len(self.selected)} of {len(self.rows)} parameters are measured")
        return "\n".join([*lines, *self.notes])
