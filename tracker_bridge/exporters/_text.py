"""Runs as text files: CSV for the scalar series, JSON lines for everything that a run holds."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from typing import IO, Any

from tracker_bridge.adapter import AlertItem, ArtifactItem, HistogramItem, Item, ParamsItem, Row, TagsItem, TextItem
from tracker_bridge.exporters._items import Selection, items, points
from tracker_bridge.reader import read
from tracker_bridge.rundir import RunPaths, load_manifest


def write_csv(paths: RunPaths, selection: Selection, file: IO[str]) -> int:
    """Long rows `name,step,time_ns,value`; returns the number of points.

    Values are written so that they read back exactly; NaN and the infinities are `nan`, `inf` and `-inf`.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("name", "step", "time_ns", "value"))
    count = 0
    for block in points(paths, selection):
        names = [block.names[code] for code in block.codes.tolist()]
        writer.writerows(zip(names, block.steps, block.times.tolist(), block.values.tolist(), strict=True))
        count += len(names)
    return count


def write_jsonl(paths: RunPaths, selection: Selection, file: IO[str]) -> int:
    """A line for each thing that was logged, in the forms of the `jsonl` backend; returns the number of points.

    The first line says which run it is, the last its status. Numbers that JSON cannot say are the texts `nan`, `inf`
    and `-inf`. A file is named by its path.
    """
    manifest, reader = load_manifest(paths), read(paths.root)
    head: dict[str, Any] = {
        "run_id": manifest.run_id,
        "project": manifest.project,
        "experiment": manifest.experiment,
        "name": manifest.name,
        "attempt": manifest.attempt,
    }
    count = 0
    _line(file, head)
    for item in items(paths, selection):
        _line(file, {"time_ns": item.time_ns, **dict(_content(item))})
        count += len(item.names) if isinstance(item, Row) else 0
    _line(
        file,
        {"time_ns": manifest.finished_ns or 0, "status": reader.status}
        if manifest.finished_ns
        else {"status": reader.status},
    )
    return count


def _content(item: Item) -> Iterator[tuple[str, Any]]:
    if isinstance(item, Row):
        yield "step", item.step
        yield "metrics", dict(zip(item.names, item.values.tolist(), strict=True))
    elif isinstance(item, ParamsItem):
        yield "params", item.params
    elif isinstance(item, TagsItem):
        yield "tags", item.now
    elif isinstance(item, TextItem):
        yield "step", item.step
        yield "text", {item.name: item.text}
    elif isinstance(item, ArtifactItem):
        yield "step", item.step
        yield "artifact", {item.name: str(item.path)}
        yield "media_type", item.media_type
    elif isinstance(item, HistogramItem):
        yield "step", item.step
        yield "histogram", {item.name: {"edges": item.edges.tolist(), "counts": item.counts.tolist()}}
    elif isinstance(item, AlertItem):
        yield "step", item.step
        alert = {"rule": item.rule, "severity": item.severity, "title": item.title, "text": item.text}
        yield "alert", alert | {"layers": list(item.layers)}


def _line(file: IO[str], value: Mapping[str, Any]) -> None:
    file.write(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str))
    file.write("\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
