"""A `SummaryWriter` of the script (torch's or tensorboardX's): rows of scalars as one event each, in its own file.

Degraded: params, tags and alerts are texts, a file is a text with its path.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import numpy as np

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Capabilities,
    HistogramItem,
    Item,
    Opened,
    ParamsItem,
    Row,
    RunInfo,
    TagRule,
    TagsItem,
    TextItem,
)
from tracker_bridge.attaching._live import LiveAdapter

__all__ = ["LiveWriter"]


PATIENCE = 5.0
"""Seconds for which the script's `close` waits at the most while one item of ours is written."""


class LiveWriter(LiveAdapter):
    """See the module."""

    tracker = "SummaryWriter"
    capabilities = Capabilities(
        # A series whose step goes back would hide from the server what the script had logged of it.
        steps="increasing",
        value_type="float32",
        tags=TagRule(form="text"),
        media=frozenset({"text", "histogram"}),
    )

    def __init__(self, live: Any) -> None:
        super().__init__(live)
        self._open = threading.RLock()
        self._stop = self._hold_close()

    def open(self, run: RunInfo) -> Opened:
        """Find the protobuf classes of the writer's own package."""
        del run
        ours = any(kind.__module__.startswith("tensorboardX") for kind in type(self.live).__mro__)
        self._summary: Any = import_module(
            "tensorboardX.proto.summary_pb2" if ours else "tensorboard.compat.proto.summary_pb2"
        )
        folder = str(getattr(self.live, "log_dir", None) or getattr(self.live, "logdir", ""))
        return Opened({"log_dir": folder})

    def held_open(self) -> AbstractContextManager[object]:
        """A writer that is closed while it is written to raises, or takes what it never writes (tensorboardX)."""
        return self._open

    def ended(self) -> bool:
        """A closed writer would begin a second file, which hides the first one's points."""
        return self.live.file_writer is None

    def put(self, item: Item) -> None:
        """Log one item."""
        if isinstance(item, Row):
            value = self._summary.Summary.Value
            values = [
                value(tag=name, simple_value=number) for name, number in zip(item.names, _floats(item), strict=True)
            ]
            summary = self._summary.Summary(value=values)
            self.live.file_writer.add_summary(summary, int(item.step), item.time_ns / 1e9)
        elif isinstance(item, HistogramItem):
            _add_histogram(self.live, item)
        else:
            name, text = _as_text(item)
            step = getattr(item, "step", None)
            self.live.add_text(name, text, None if step is None else int(step), item.time_ns / 1e9)

    def flush(self) -> None:
        """Flush the script's writer."""
        with self._open:
            if not self.ended():
                self.live.flush()

    def close(self, status: str | None) -> None:
        """The writer stays open, and is closed as before."""
        del status
        self._stop()

    def _hold_close(self) -> Callable[[], None]:
        """Let the script's `close` wait for the one item that is being written, or a flush. Returns what ends that."""
        live, own = self.live, self.live.close

        @functools.wraps(own)
        def close() -> Any:
            # A disk that hangs, or a child forked in that moment, must not keep the script here.
            held = self._open.acquire(timeout=PATIENCE)
            try:
                return own()
            finally:
                if held:
                    self._open.release()

        live.close = close

        def stop() -> None:
            if vars(live).get("close") is close:
                del live.close

        return stop


def _floats(row: Row) -> list[float]:
    with np.errstate(over="ignore"):
        found: list[float] = row.values.astype(np.float32).tolist()
    return found


def _add_histogram(writer: Any, item: HistogramItem) -> None:
    middles = (item.edges[:-1] + item.edges[1:]) / 2
    writer.add_histogram_raw(
        item.name,
        min=float(item.edges[0]),
        max=float(item.edges[-1]),
        num=float(item.counts.sum()),
        sum=float((item.counts * middles).sum()),
        sum_squares=float((item.counts * middles**2).sum()),
        bucket_limits=item.edges[1:].tolist(),
        bucket_counts=item.counts.tolist(),
        global_step=int(item.step),
        walltime=item.time_ns / 1e9,
    )


def _as_text(item: Item) -> tuple[str, str]:
    if isinstance(item, ParamsItem):
        return "tracker_bridge/params", "```json\n" + json.dumps(item.params, indent=2, default=str) + "\n```"
    if isinstance(item, TagsItem):
        return "tracker_bridge/tags", ", ".join(
            tag if value is None else f"{tag}: {value}" for tag, value in item.now.items()
        )
    if isinstance(item, ArtifactItem):
        return item.name, str(item.path)
    if isinstance(item, AlertItem):
        return f"health/{item.rule}/alert", f"**{item.title}**\n\n{item.text}"
    assert isinstance(item, TextItem)
    return item.name, item.text
