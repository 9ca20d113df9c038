"""A `wandb.Run` of the script, whose numbering of rows is the script's.

A row of the bridge has its step in the column `tracker_bridge/step`, the x axis of its series; it never names a W&B
step. Where the script lets W&B number its rows, those of the bridge are rows of their own between them. Where it passes
`step=`, or builds rows with `commit=False`, any row of ours would push W&B's counter beyond the script's next one, and
W&B would drop that; there each row of ours waits and is part of one that the script begins. Params that the script's
config has already are left alone; an alert is a text.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Capabilities,
    HistogramItem,
    Item,
    NameRule,
    Opened,
    ParamRule,
    ParamsItem,
    Rejected,
    Row,
    RunInfo,
    TagRule,
    TagsItem,
    TextItem,
)
from tracker_bridge.attaching._live import LiveAdapter

__all__ = ["AXIS", "LiveWandb"]

AXIS = "tracker_bridge/step"
"""The column with the bridge's step."""

MOST_WAITING = 10_000
"""So many rows wait for rows of the script; further ones are dropped, counted."""

GRACE = 10.0
"""Seconds for which rows wait to see how the script numbers its own; after that they are rows of their own."""

_LONGEST_TAG = 64


class LiveWandb(LiveAdapter):
    """See the module."""

    tracker = "wandb.Run"
    capabilities = Capabilities(
        names=NameRule(reserved=(r"_(step|timestamp|runtime|wandb)", r"tracker_bridge/step")),
        params=ParamRule(separator=None, typed=True),
        tags=TagRule(form="list", max_length=_LONGEST_TAG),
        media=frozenset({"text", "histogram", "artifact"}),
    )

    def __init__(self, live: Any) -> None:
        super().__init__(live)
        self._waiting: deque[dict[str, Any]] = deque()
        self._numbered_by_script: bool | None = None
        self._patience = time.monotonic() + GRACE
        self._defined: set[str] = set()
        self._row, self._taken = -1, False
        self._lost = 0
        self._stop = self._observe()

    def open(self, run: RunInfo) -> Opened:
        """Nothing to open."""
        del run
        self.live.define_metric(AXIS, hidden=True)
        return Opened({"run_id": str(self.live.id)}, self.live.url)

    def ended(self) -> bool:
        """Whether the script has finished its run."""
        return bool(getattr(self.live, "_is_finished", False))

    def put(self, item: Item) -> None:
        """Log one item."""
        if isinstance(item, ParamsItem):
            known = dict(self.live.config.items())
            self.live.config.update({name: value for name, value in item.params.items() if name not in known})
        elif isinstance(item, TagsItem):
            kept = [tag for tag in self.live.tags or () if tag not in item.remove]
            added = [tag if value is None else f"{tag}:{value}" for tag, value in item.add.items()]
            self.live.tags = (*kept, *(tag[:_LONGEST_TAG] for tag in added if tag not in kept))
        elif isinstance(item, ArtifactItem):
            self.live.save(str(item.path), base_path=str(item.path.parent), policy="now")
        else:
            if len(self._waiting) >= MOST_WAITING:
                raise Rejected([item], f"the script numbers its rows, and began none while {MOST_WAITING} waited")
            self._waiting.append(self._columns(item))
            self._log_own_rows()

    def flush(self) -> None:
        """Log what has waited long enough to see how the script numbers its rows."""
        self._log_own_rows()

    def close(self, status: str | None) -> None:
        """Log what waits, unless that would cost the script rows; the run stays open."""
        del status
        if self._numbered_by_script is None:
            self._numbered_by_script = False
        if not self.ended():
            self._log_own_rows()
        self._stop()
        self._lost = sum(len(row) - (AXIS in row) for row in self._waiting)

    def refused(self) -> Mapping[str, int]:
        """Values that still waited for a row of the script when the run was closed."""
        return (
            {"the script numbers its rows, and began too few for these to be part of": self._lost} if self._lost else {}
        )

    # --- rows

    def _columns(self, item: Item) -> dict[str, Any]:
        """The columns of a row."""
        if isinstance(item, Row):
            columns: dict[str, Any] = dict(zip(item.names, item.values.tolist(), strict=True))
            step: Any = item.step
        elif isinstance(item, HistogramItem):
            histogram = import_module("wandb").Histogram(np_histogram=(item.counts.tolist(), item.edges.tolist()))
            columns, step = {item.name: histogram}, item.step
        elif isinstance(item, AlertItem):
            columns, step = {f"health/{item.rule}/alert": f"{item.title}: {item.text}"}, item.step
        else:
            assert isinstance(item, TextItem)
            columns, step = {item.name: item.text}, item.step
        for name in columns.keys() - self._defined:
            self._defined.add(name)
            self.live.define_metric(name, step_metric=AXIS)
        return columns if step is None else {**columns, AXIS: step}

    def _log_own_rows(self) -> None:
        """As rows of their own, where that disturbs no row of the script."""
        if self._numbered_by_script or (self._numbered_by_script is None and time.monotonic() < self._patience):
            return
        try:
            while self._waiting:
                self.live.log(self._waiting[0])
                self._waiting.popleft()
        except Exception:
            # W&B's process is gone or stuck; what waits is tried again with the next record, and reported at the end.
            return

    def _observe(self) -> Callable[[], None]:
        """See how the script logs, and let waiting rows be part of its own. Returns what ends that."""
        run = self.live
        name = "_log" if hasattr(type(run), "_log") else "log"
        own = getattr(run, name)

        @functools.wraps(own)
        def log(data: Any, step: Any = None, commit: Any = None) -> Any:
            if not threading.current_thread().name.startswith("tracker_bridge-"):
                data = self._joined(data, step, commit)
            return own(data, step, commit)

        setattr(run, name, log)

        def stop() -> None:
            if vars(run).get(name) is log:
                delattr(run, name)

        return stop

    def _joined(self, data: Any, step: Any, commit: Any) -> Any:
        """What the script logs, and one of the rows that wait, if this begins a row that has none yet."""
        try:
            if step is not None or commit is False:
                self._numbered_by_script = True
            elif self._numbered_by_script is None:
                self._numbered_by_script = False
            if not self._numbered_by_script:
                return data
            late = step is not None and step < self._row
            if step is not None and step > self._row:
                self._row, self._taken = step, False
            if self._waiting and not self._taken and not late:
                self._taken = True
                row = self._waiting.popleft()
                data = {**{column: value for column, value in row.items() if column not in data}, **data}
            if commit or (step is None and commit is None):
                self._taken = False
            return data
        except Exception:
            return data
