"""Rows to the SDK's service process, and what earlier logs of a run have of them.

The everyday `run.log` sends a partial row that the service completes, writes out and repeats in a summary of all
series. A whole row needs none of that, and costs a third. Where a future SDK has no such path, `run.log` is used.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

from tracker_bridge_wandb._ledger import Segment
from tracker_bridge_wandb._log import LogTail

SendRow = Callable[[int, Mapping[str, str]], None]
"""`send(number, cells)`: the row `number` with its columns as JSON."""


def sender(run: Any) -> SendRow:
    """The fastest way this SDK has."""
    publish = getattr(getattr(run, "_interface", None), "_publish_history", None)
    return _whole_rows(publish) if publish is not None and hasattr(pb, "HistoryRecord") else _by_log(run)


def summarize(run: Any, latest: Mapping[str, str]) -> None:
    """Set the run's summary: column -> JSON of its last value."""
    publish = getattr(getattr(run, "_interface", None), "_publish_summary", None)
    if publish is None:
        run.summary.update({name: json.loads(value) for name, value in latest.items()})
        return
    record = pb.SummaryRecord()
    for name, value in latest.items():
        record.update.add(key=name, value_json=value)
    publish(record)


def cells_of(history: bytes) -> dict[str, str]:
    """The columns of a `HistoryRecord` from a log."""
    record = pb.HistoryRecord.FromString(history)
    return {item.key or "/".join(item.nested_key): item.value_json for item in record.item}


def earlier_segments(folder: str, run_id: str) -> tuple[list[Segment], int]:
    """The logs of the run in `folder`, whoever wrote them, oldest first; and the number of the row after their last."""
    logs = Path(folder).glob(f"wandb/*run-*/run-{glob.escape(run_id)}.wandb")
    segments: list[Segment] = []
    after = 0
    for path in sorted(logs, key=lambda log: log.parent.name.removeprefix("offline-")):
        rows = list(LogTail(path).history())
        if rows:
            segments.append(Segment(str(path), _number(rows[0])))
            after = max(after, _number(rows[-1]) + 1)
    return segments, after


def _number(history: bytes) -> int:
    return int(pb.HistoryRecord.FromString(history).step.num)


def _whole_rows(publish: Callable[[Any], None]) -> SendRow:
    def send(number: int, cells: Mapping[str, str]) -> None:
        record = pb.HistoryRecord()
        add = record.item.add
        for name, value in cells.items():
            add(key=name, value_json=value)
        record.step.num = number
        publish(record)

    return send


def _by_log(run: Any) -> SendRow:
    def send(number: int, cells: Mapping[str, str]) -> None:
        values = {name: json.loads(value) for name, value in cells.items() if name not in ("_step", "_runtime")}
        run.log(values, step=number, commit=True)

    return send
