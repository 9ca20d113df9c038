"""`wandb.plot`: charts. The data of those made from a table are kept as JSON; what draws them is W&B's and is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracker_bridge.compat.wandb.data_types import Chart, Table

__all__ = ["bar", "histogram", "line", "line_series", "plot_table", "scatter", "visualize"]


def _of_table(table: Table, *_args: Any, title: str = "", **_kwargs: Any) -> Chart:
    return Chart(table, title)


bar = histogram = line = scatter = _of_table


def line_series(xs: Any, ys: Any, keys: Any = None, title: str = "", xname: str = "x", **_kwargs: Any) -> Chart:
    """Several lines: kept as a table of x, line, y."""
    names = list(keys) if keys is not None else [f"line_{number}" for number in range(len(ys))]
    shared = not (len(xs) and hasattr(xs[0], "__len__"))
    rows = [
        [x, name, y]
        for number, (name, values) in enumerate(zip(names, ys, strict=False))
        for x, y in zip(xs if shared else xs[number], values, strict=False)
    ]
    return Chart(Table(columns=[xname, "line", "y"], data=rows), title)


def plot_table(vega_spec_name: str, data_table: Table, *_args: Any, **_kwargs: Any) -> Chart:
    """A custom chart of a table."""
    return Chart(data_table, vega_spec_name)


def visualize(id: str, value: Table) -> Chart:  # noqa: A002 - W&B's name
    """A custom chart of a table."""
    return Chart(value, id)


def __getattr__(name: str) -> Callable[..., Chart]:
    if name not in ("confusion_matrix", "pr_curve", "roc_curve"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def chart(*_args: Any, title: str = "", **_kwargs: Any) -> Chart:
        return Chart(None, title or name)

    return chart
