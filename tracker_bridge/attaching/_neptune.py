"""A `neptune_scale.Run` of the script. Neptune takes steps that grow within a series; others are dropped, counted."""

from __future__ import annotations

from datetime import datetime, timezone
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
    ParamsItem,
    Rejected,
    Row,
    RunInfo,
    TagsItem,
    flatten_params,
    param_text,
)
from tracker_bridge.attaching._live import LiveAdapter

__all__ = ["LiveNeptune"]

_LARGEST_STEP = 1e12
_LONGEST = 256_000
# Characters. neptune-scale 0.30 never returns from a config of 2 MiB.
_MOST_BINS = 512


class LiveNeptune(LiveAdapter):
    """See the module."""

    tracker = "neptune_scale.Run"
    capabilities = Capabilities(
        steps="increasing",
        step_type="float",
        names=NameRule(max_length=1000, unit="bytes", reserved=(r"sys/.*",)),
        media=frozenset({"text", "histogram", "artifact"}),
    )

    def open(self, run: RunInfo) -> Opened:
        """Nothing to open."""
        del run
        return Opened({"run_id": str(getattr(self.live, "_run_id", ""))})

    def ended(self) -> bool:
        """A closed run takes every call and keeps nothing."""
        return bool(getattr(self.live, "_is_closing", False))

    def put(self, item: Item) -> None:
        """Log one item."""
        step = getattr(item, "step", None)
        if step is not None and not 0 <= step < _LARGEST_STEP:
            raise Rejected([item], "Neptune takes steps from 0 to below 10^12 only")
        when = datetime.fromtimestamp(item.time_ns / 1e9, timezone.utc)
        if isinstance(item, Row):
            self.live.log_metrics(dict(zip(item.names, item.values.tolist(), strict=True)), step=step, timestamp=when)
        elif isinstance(item, ParamsItem):
            self.live.log_configs({name: _config(value) for name, value in flatten_params(item.params).items()})
        elif isinstance(item, TagsItem):
            self._tags(item)
        elif isinstance(item, HistogramItem):
            self._histogram(item, when)
        elif isinstance(item, ArtifactItem):
            if step is None:
                self.live.assign_files({item.name: item.path})
            else:
                self.live.log_files({item.name: item.path}, step=step, timestamp=when)
        else:
            name, text = (
                (f"health/{item.rule}/alerts", item.text) if isinstance(item, AlertItem) else (item.name, item.text)
            )
            if step is None:
                self.live.log_configs({name: text[:_LONGEST]})
            else:
                self.live.log_string_series({name: text[:_LONGEST]}, step=step, timestamp=when)

    def _tags(self, item: TagsItem) -> None:
        added = [tag if value is None else f"{tag}:{value}" for tag, value in item.add.items()]
        if added:
            self.live.add_tags(added)
        if item.remove:
            self.live.remove_tags(list(item.remove))

    def _histogram(self, item: HistogramItem, when: datetime) -> None:
        if len(item.counts) > _MOST_BINS:
            raise Rejected([item], f"Neptune takes histograms of at most {_MOST_BINS} bins")
        kind = import_module("neptune_scale.types").Histogram
        counts = [int(count) for count in item.counts]
        made = kind(bin_edges=item.edges.tolist(), counts=counts)
        self.live.log_histograms({item.name: made}, step=item.step, timestamp=when)


def _config(value: Any) -> Any:
    if isinstance(value, (bool, float)) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return (value if isinstance(value, str) else param_text(value))[:_LONGEST]
