"""One row that a script logs, taken apart: scalars by the step they belong to, and everything else.

What `define_metric` says is applied here: the value of a metric's own x axis becomes its step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from tracker_bridge.compat import _media
from tracker_bridge.compat._core import Session
from tracker_bridge.compat.wandb.data_types import Histogram, Media

__all__ = ["Axes", "log_row"]

_SCALARS = (int, float)


class Axes:
    """The x axes that `define_metric` gave to names and patterns, and the last value of each axis."""

    def __init__(self) -> None:
        self.defined: dict[str, str | None] = {}
        self._of: dict[str, str | None] = {}
        self._last: dict[str, int] = {}

    def define(self, pattern: str, axis: str | None) -> None:
        """Names that match `pattern` (a trailing `*` is a wildcard) belong to `axis`; None: to W&B's own step."""
        self.defined[pattern] = axis
        self._of.clear()

    def __bool__(self) -> bool:
        return any(self.defined.values())

    def axis_of(self, name: str) -> str | None:
        """The axis of a metric. An exact name wins over a pattern, a later pattern over an earlier one."""
        if name not in self._of:
            patterns = [pattern for pattern in self.defined if pattern.endswith("*") and fnmatchcase(name, pattern)]
            chosen = name if name in self.defined else (patterns[-1] if patterns else None)
            axis = self.defined[chosen] if chosen is not None else None
            self._of[name] = None if axis == name else axis
        return self._of[name]

    def step_of(self, name: str, row: Mapping[str, Any], step: int, session: Session) -> int:
        """The step of a metric in this row."""
        axis = self.axis_of(name)
        if axis is None:
            return step
        if axis in row:
            value = float(row[axis])
            if not value.is_integer():
                session.coverage.degrade(f"define_metric(step_metric={axis!r})", "its values are no whole numbers")
                self._last.pop(axis, None)
                return step
            self._last[axis] = int(value)
        return self._last.get(axis, step)


def log_row(session: Session, data: Mapping[str, Any], step: int, axes: Axes) -> None:
    """Log one row. Raises `TypeError` for a value that W&B does not take either."""
    scalars: dict[str, Any] = {}
    others: list[tuple[str, Any]] = []
    _take_apart(data, "", scalars, others)
    if scalars:
        if axes:
            by_step: dict[int, dict[str, Any]] = {}
            for name, value in scalars.items():
                by_step.setdefault(axes.step_of(name, scalars, step, session), {})[name] = value
            for at, values in by_step.items():
                session.run.log_metrics(values, at)
        else:
            session.run.log_metrics(scalars, step)
    for name, value in others:
        _log_other(session, name, value, step)


def _take_apart(data: Mapping[str, Any], prefix: str, scalars: dict[str, Any], others: list[tuple[str, Any]]) -> None:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, _SCALARS) or (not isinstance(value, Media) and _is_scalar(value)):
            scalars[name] = value
        elif isinstance(value, Mapping):
            _take_apart(value, f"{name}.", scalars, others)
        else:
            others.append((name, value))


def _is_scalar(value: Any) -> bool:
    """A 0-d array or tensor, or one with one element."""
    shape = getattr(value, "shape", None)
    if shape is None or not hasattr(value, "dtype"):
        return False
    try:
        return all(length == 1 for length in shape) and "str" not in str(value.dtype)
    except TypeError:
        return False


def _log_other(session: Session, name: str, value: Any, step: int) -> None:
    coverage = session.coverage
    if value is None:
        coverage.leave_out("log: None", "there is no number to log")
    elif isinstance(value, str):
        session.run.log_text(name, value, step)
        coverage.translate("log: text")
    elif isinstance(value, Histogram):
        _guarded(session, name, lambda: session.run.log_histogram(name, value.histogram, value.bins, step))
        coverage.translate("log: Histogram")
    elif isinstance(value, Media):
        _log_media(session, name, value, step)
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Media) for item in value):
        for number, item in enumerate(value):
            _log_other(session, f"{name}/{number}", item, step)
    elif _media.is_figure(value) or hasattr(value, "to_plotly_json"):
        figure = _media.is_figure(value)
        content = _media.figure_png(value) if figure else value.to_json().encode()
        suffix = ".png" if figure else ".plotly.json"
        session.keep_bytes(content, f"{name}{suffix}", suffix, step)
        coverage.degrade("log: figure", "is a PNG file" if figure else "is a JSON file")
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        counts, edges = _media.histogram(value)
        session.run.log_histogram(name, counts, edges, step)
        coverage.degrade("log: array", "is a histogram of its values")
    else:
        session.run.log_text(name, _as_json(name, value), step)
        coverage.degrade(f"log: {type(value).__name__}", "is a JSON text")


def _log_media(session: Session, name: str, value: Media, step: int) -> None:
    kind = type(value).__name__
    made = value.content()
    if made is None:
        session.coverage.leave_out(f"log: {kind}", f"there is no file of it ({value.lost or 'nothing to keep'})")
        return
    content, suffix = made
    session.keep_bytes(content, name if name.endswith(suffix) else name + suffix, suffix, step)
    lost = f" without {value.lost}" if value.lost else ""
    session.coverage.degrade(f"log: {kind}", f"is a file{lost}")


def _guarded(session: Session, name: str, action: Callable[[], None]) -> None:
    try:
        action()
    except ValueError as error:
        session.coverage.leave_out(f"log: {name}", str(error))


def _as_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, default=_number)
    except (TypeError, ValueError) as error:
        raise TypeError(f"wandb.log: {name!r} is a {type(value).__name__}, which cannot be logged ({error})") from None


def _number(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item() if not getattr(value, "ndim", 0) else value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
