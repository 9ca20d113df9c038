"""The report as a picture, for papers and chats: a PNG (or what else Matplotlib writes). Imports Matplotlib when asked.

Several runs stand side by side, each with its map, its total norm and its loss, on common scales.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracker_bridge.errors import UsageError
from tracker_bridge.report._downsample import bin_starts
from tracker_bridge.report._payload import shown
from tracker_bridge.report._story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_RUNS = 6
_BINS = 800
_TICKS = 30
_COLOURS = {"error": "#d93025", "warning": "#e08a00", "info": "#1a73e8"}


def write_picture(stories: Sequence[Story], path: str | os.PathLike[str], *, dpi: int = 150) -> Path:
    """Write a picture of at most `MOST_RUNS` runs; the ending of `path` says the format.

    Raises `UsageError` if Matplotlib is missing, there are too many runs or the format is none of its; `OSError`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError('pictures need Matplotlib; install it with: pip install "tracker-bridge[plot]"') from error
    if not 0 < len(stories) <= MOST_RUNS:
        raise UsageError(f"a picture shows 1 to {MOST_RUNS} runs, not {len(stories)}; the HTML report shows any number")
    figure = Figure(figsize=(max(9.0, 1.5 + 5.0 * len(stories)), 8.0), layout="constrained")
    axes = figure.subplots(3, len(stories), squeeze=False, sharex="col", height_ratios=(3, 1, 1))
    limits = _limits(stories)
    image = None
    for column, story in enumerate(stories):
        image = _draw_map(axes[0, column], story, limits, with_names=column == 0 or len(stories) <= 2) or image
        _draw_total(axes[1, column], story)
        _draw_loss(axes[2, column], story)
        axes[0, column].set_title(_plain(story.title), fontsize=10)
        axes[2, column].set_xlabel("step")
    if image is not None:
        figure.colorbar(image, ax=axes[0, :], label="gradient norm", pad=0.01)
    target = Path(path)
    try:
        figure.savefig(target, dpi=dpi)
    except ValueError as error:
        raise UsageError(f"{target.name}: {error}") from error
    return target


def _limits(stories: Sequence[Story]) -> tuple[float, float]:
    values = [story.models[0].norms.values for story in stories if story.models]
    usable = [one[np.isfinite(one) & (one > 0)] for one in values]
    together = np.concatenate(usable) if usable else np.zeros(0)
    if not together.size:
        return 1e-3, 1.0
    low, high = np.quantile(together, [0.002, 0.998])
    return float(low), float(max(high, low * 1.01))


def _draw_map(axis: Axes, story: Story, limits: tuple[float, float], *, with_names: bool) -> Any:
    from matplotlib.colors import LogNorm

    axis.set_facecolor("#dddddd")
    if not story.models or not len(story.models[0].norms):
        axis.text(0.5, 0.5, "no gradient norms", ha="center", va="center", transform=axis.transAxes)
        return None
    norms = story.models[0].norms
    starts = bin_starts(len(norms), _BINS)
    finite = np.where(np.isfinite(norms.values) & (norms.values > 0), norms.values, -np.inf)
    largest = np.maximum.reduceat(finite, starts, axis=0)
    broken = np.logical_or.reduceat(norms.present & ~np.isfinite(norms.values), starts, axis=0)
    edges = np.append(norms.steps[starts], norms.steps[-1] + 1).astype(np.float64)
    layers = np.arange(len(norms.names) + 1) - 0.5
    increasing = np.all(np.diff(edges) > 0)
    if not increasing:
        edges = np.linspace(edges.min(), edges.max() + 1, len(edges))  # a resumed run that went back
    shown_values = np.ma.masked_where(~np.isfinite(largest), largest).T
    image = axis.pcolormesh(edges, layers, shown_values, norm=LogNorm(*limits), cmap="viridis", rasterized=True)
    if broken.any():
        mark = np.ma.masked_where(~broken, np.ones_like(largest)).T
        axis.pcolormesh(edges, layers, mark, cmap="spring", vmin=1, vmax=2, rasterized=True)
    axis.invert_yaxis()
    every = max(1, -(-len(norms.names) // _TICKS))
    ticks = np.arange(0, len(norms.names), every)
    axis.set_yticks(
        ticks, [_plain(norms.names[slot], 36) for slot in ticks] if with_names else [""] * len(ticks), fontsize=6
    )
    for alert in story.alerts:
        axis.axvline(float(alert.step), color=_COLOURS.get(alert.severity, "#888888"), linewidth=0.9, linestyle=":")
    return image


def _draw_total(axis: Axes, story: Story) -> None:
    axis.set_ylabel("total norm")
    if not story.models or not len(story.models[0].norms):
        return
    norms = story.models[0].norms
    axis.plot(norms.steps, np.where(norms.total > 0, norms.total, np.nan), linewidth=0.7, color="#1f77b4")
    if np.isfinite(norms.max_norm).any():
        axis.plot(norms.steps, norms.max_norm, linewidth=0.9, linestyle="--", color="#d95f02", label="clip threshold")
    for alert in story.alerts:
        axis.axvline(float(alert.step), color=_COLOURS.get(alert.severity, "#888888"), linewidth=0.9, linestyle=":")
    if norms.skipped.any():
        floor = np.nanmin(np.where(norms.total > 0, norms.total, np.nan))
        at = norms.steps[norms.skipped]
        axis.plot(at, np.full(len(at), floor), "x", color="#c2185b", markersize=4, label="skipped step")
    axis.set_yscale("log")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7, loc="upper right")


def _draw_loss(axis: Axes, story: Story) -> None:
    axis.set_ylabel("loss")
    if story.loss is not None:
        axis.plot(story.loss.steps, story.loss.values, linewidth=0.7, color="#1b9e77")


def _plain(text: str, most: int = 60) -> str:
    # A dollar sign would begin mathematics, which a name is not.
    text = shown(text)
    text = text if len(text) <= most else "..." + text[3 - most :]
    return text.replace("$", r"\$")
