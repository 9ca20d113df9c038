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
from typing import Any, Union

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
MOST_WAITING_BYTES = 64 * 1024 * 1024
"""So many rows, and about so many bytes of them, wait for rows of the script; further ones are dropped, counted."""

GRACE = 10.0
"""Seconds for which rows wait to see how the script numbers its own; after that they are rows of their own."""

_LONGEST_TAG = 64


_RowLike = Union[Row, HistogramItem, AlertItem, TextItem]


class LiveWandb(LiveAdapter):
    """See the module."""

    tracker = "wandb.Run"
    capabilities = Capabilities(
        step_type="float",
        names=NameRule(reserved=(r"_(step|timestamp|runtime|wandb)", r"tracker_bridge/step")),
        params=ParamRule(separator=None, typed=True),
        tags=TagRule(form="list", max_length=_LONGEST_TAG),
        media=frozenset({"text", "histogram", "artifact"}),
    )

    def __init__(self, live: Any) -> None:
        super().__init__(live)
        self._waiting: deque[_RowLike] = deque()
        self._waiting_bytes = 0
        self._numbered_by_script: bool | None = None
        self._patience = time.monotonic() + GRACE
        self._defined: set[str] = set()
        self._row, self._taken = -1, False
        self._lost = 0
        self._lock = threading.Lock()
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
            assert isinstance(item, (Row, HistogramItem, AlertItem, TextItem))
            size = _bytes(item)
            # The script may take rows meanwhile: there can only be more room than was seen.
            if len(self._waiting) >= MOST_WAITING or self._waiting_bytes + size > MOST_WAITING_BYTES:
                raise Rejected([item], f"the script numbers its rows, and began too few for the {_most()} that wait")
            self._define(item)
            with self._lock:
                self._waiting.append(item)
                self._waiting_bytes += size
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
        self._lost = sum(len(item.names) if isinstance(item, Row) else 1 for item in self._waiting)

    def refused(self) -> Mapping[str, int]:
        """Values that still waited for a row of the script when the run was closed."""
        return (
            {"the script numbers its rows, and began too few for these to be part of": self._lost} if self._lost else {}
        )

    # --- rows

    def _define(self, item: _RowLike) -> None:
        """Give each of the row's series the bridge's axis."""
        for name in _names(item):
            if name not in self._defined:
                self._defined.add(name)
                self.live.define_metric(name, step_metric=AXIS)

    def _take(self) -> _RowLike | None:
        """The oldest waiting row, which waits no longer."""
        with self._lock:
            if not self._waiting:
                return None
            item = self._waiting.popleft()
            self._waiting_bytes -= _bytes(item)
            return item

    def _log_own_rows(self) -> None:
        """As rows of their own, where that disturbs no row of the script."""
        if self._numbered_by_script is None and time.monotonic() < self._patience:
            return
        while not self._numbered_by_script:
            item = self._take()
            if item is None:
                return
            try:
                self.live.log(_columns(item))
            except Exception:
                # W&B's process is gone or stuck; it is tried again with the next record, and reported at the end.
                with self._lock:
                    self._waiting.appendleft(item)
                    self._waiting_bytes += _bytes(item)
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
            if not self._taken and not late:
                row = self._take()
                if row is not None:
                    self._taken = True
                    data = {**{name: value for name, value in _columns(row).items() if name not in data}, **data}
            if commit or (step is None and commit is None):
                self._taken = False
            return data
        except Exception:
            return data


def _columns(item: _RowLike) -> dict[str, Any]:
    """The columns of a row."""
    values: list[Any]
    if isinstance(item, Row):
        values = item.values.tolist()
    elif isinstance(item, HistogramItem):
        values = [import_module("wandb").Histogram(np_histogram=(item.counts.tolist(), item.edges.tolist()))]
    elif isinstance(item, AlertItem):
        values = [f"{item.title}: {item.text}"]
    else:
        values = [item.text]
    columns = dict(zip(_names(item), values, strict=True))
    return columns if item.step is None else {**columns, AXIS: item.step}


def _names(item: _RowLike) -> tuple[str, ...]:
    if isinstance(item, Row):
        return item.names
    return (f"health/{item.rule}/alert" if isinstance(item, AlertItem) else item.name,)


def _bytes(item: _RowLike) -> int:
    """What a waiting row takes, about. Rows of the same series share their names."""
    if isinstance(item, Row):
        return 400 + item.values.nbytes
    if isinstance(item, HistogramItem):
        return 600 + item.counts.nbytes + item.edges.nbytes
    return 400 + 4 * len(item.text)


def _most() -> str:
    return f"{MOST_WAITING:,} rows or {MOST_WAITING_BYTES // 2**20} MiB"
