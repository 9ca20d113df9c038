"""Terminal views of a run, as rich renderables: a heatmap, a table of layers. Foreign texts are made safe first."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tracker_bridge.report._downsample import bin_starts
from tracker_bridge.report._payload import shown
from tracker_bridge.report._story import Model

# Viridis at ten places; the glyphs carry the same order where there is no colour.
_COLOURS = (
    "#440154",
    "#482878",
    "#3e4989",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
)
_GLYPHS = " .:-=+*#%@"
_BROKEN, _ZERO, _ABSENT = "!", "0", " "
_STYLES = tuple(Style(color=Color.parse(code)) for code in _COLOURS)
_PAINTED = tuple(Style(bgcolor=Color.parse(code)) for code in _COLOURS)
_BROKEN_STYLE = Style(color="white", bgcolor="#ff2d95", bold=True)
_ZERO_STYLE = Style(color="#ff2d95", bgcolor="black")


def heatmap(model: Model, *, width: int, rows: int, coloured: bool) -> Table:
    """Layers x steps, at most `rows` lines of `width` characters; the largest norm of each bin, log scale.

    `!` is NaN or infinite, `0` exactly zero. If there are more layers than rows, neighbours share one.
    """
    norms = model.norms
    groups = bin_starts(len(norms.names), rows)
    ends = np.append(groups[1:], len(norms.names))
    labels = [
        shown(norms.names[start]) if end - start == 1 else f"{shown(norms.names[start])} +{end - start - 1}"
        for start, end in zip(groups, ends, strict=True)
    ]
    name_width = min(44, max(len(label) for label in labels), max(12, width // 2))
    columns = max(8, width - name_width - 1)
    starts = bin_starts(len(norms), columns)
    cells = _cells(norms.values, norms.present, starts, groups)
    finite = cells[np.isfinite(cells) & (cells > 0)]
    low, high = _limits(finite)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, width=name_width, justify="right")
    grid.add_column(no_wrap=True)
    for label, row in zip(labels, cells.T, strict=True):
        grid.add_row(Text(_tail(label, name_width), style="dim"), _line(row, low, high, coloured))
    first, last = norms.steps[0], norms.steps[-1]
    foot = f"step {first}".ljust(max(0, len(starts) - len(str(last)))) + str(last)
    grid.add_row(Text(), Text(foot, style="dim"))
    grid.add_row(Text(), _legend(low, high, coloured))
    return grid


def layer_table(model: Model, *, most: int) -> Table:
    """The layers with the largest medians first: last, median, largest, where; zeros, non-finite, absent samples."""
    norms = model.norms
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("layer", overflow="fold")
    for title in ("last", "median", "largest", "at step", "zeros", "non-finite", "absent"):
        table.add_column(title, justify="right", no_wrap=True)
    usable = np.where(np.isfinite(norms.values), norms.values, np.nan)
    known = ~np.all(np.isnan(usable), axis=0)
    medians = np.full(len(norms.names), np.nan)
    medians[known] = np.nanmedian(usable[:, known], axis=0)
    order = np.argsort(-np.where(np.isnan(medians), -1.0, medians), kind="stable")[:most]
    for slot in order:
        present = norms.present[:, slot]
        values = norms.values[present, slot]
        finite = np.isfinite(values)
        largest = int(np.argmax(np.where(finite, values, -1.0))) if finite.any() else None
        broken = int((~finite).sum())
        table.add_row(
            Text(shown(norms.names[slot])),
            Text(_number(values[-1]) if len(values) else "-"),
            Text(_number(medians[slot])),
            Text(_number(values[largest]) if largest is not None else "-"),
            Text(str(norms.steps[present][largest]) if largest is not None else "-"),
            Text(str(int((values == 0).sum()))),
            Text(str(broken), style="bold red" if broken else ""),
            Text(str(int((~present).sum()))),
        )
    return table


def _cells(
    values: npt.NDArray[np.float64],
    present: npt.NDArray[np.bool_],
    starts: npt.NDArray[np.intp],
    groups: npt.NDArray[np.intp],
) -> npt.NDArray[np.float64]:
    """Largest value of each cell, [columns, rows]: inf where one is not finite, -inf where nothing was measured."""
    ranked = np.where(present, np.where(np.isfinite(values), values, np.inf), -np.inf)
    largest = np.maximum.reduceat(np.maximum.reduceat(ranked, starts, axis=0), groups, axis=1)
    return np.asarray(largest, dtype=np.float64)


def _limits(finite: npt.NDArray[np.float64]) -> tuple[float, float]:
    if not finite.size:
        return 0.0, 1.0
    low, high = (math.log10(value) for value in np.quantile(finite, [0.01, 0.99]))
    return low, max(high, low + 0.1)


def _line(row: npt.NDArray[np.float64], low: float, high: float, coloured: bool) -> Text:
    text = Text()
    for value in row:
        if value == np.inf:
            text.append(_BROKEN, _BROKEN_STYLE)
        elif value == -np.inf:
            text.append(_ABSENT)
        elif value == 0:
            text.append(_ZERO, _ZERO_STYLE)
        else:
            level = min(9, max(0, int((math.log10(value) - low) / (high - low) * 10)))
            text.append(" " if coloured else _GLYPHS[level], _PAINTED[level] if coloured else "")
    return text


def _legend(low: float, high: float, coloured: bool) -> Text:
    text = Text(f"{10**low:.1e} ", style="dim")
    for level in range(10):
        text.append(" " if coloured else _GLYPHS[level], _PAINTED[level] if coloured else "")
    return text.append(f" {10**high:.1e}   ! not finite   0 zero", style="dim")


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else "…" + text[1 - most :]


def _number(value: float) -> str:
    return f"{value:.3g}"
