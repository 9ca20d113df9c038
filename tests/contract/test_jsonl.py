"""The `jsonl` adapter of the core, through the suite that every adapter passes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tracker_bridge.adapter import flatten_params
from tracker_bridge.builtin import JsonlAdapter
from tracker_bridge.builtin._jsonl import read_lines
from tracker_bridge.testing import AdapterTests, Point, StoredRun


class TestJsonl(AdapterTests):
    """What is in the file."""

    adapter_type = JsonlAdapter
    context: ClassVar = ()

    def options(self) -> Mapping[str, Any]:
        return {"path": str(self.place / "{run_id}.jsonl")}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        stored = stored_lines(Path(ids["path"]))
        return StoredRun(**stored)


def stored_lines(path: Path) -> dict[str, Any]:
    metrics: dict[str, list[Point]] = {}
    texts: dict[str, list[Any]] = {}
    histograms: dict[str, list[Any]] = {}
    artifacts: dict[str, bytes] = {}
    params: dict[str, Any] = {}
    tags: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    status = None
    for line in read_lines(path):
        for name, value in line.get("metrics", {}).items():
            metrics.setdefault(name, []).append(Point(line["step"], float(value), line["time_ns"] / 1e9))
        for name, text in line.get("text", {}).items():
            texts.setdefault(name, []).append((line["step"], text))
        for name, shape in line.get("histogram", {}).items():
            histograms.setdefault(name, []).append((line["step"], shape["edges"], shape["counts"]))
        for name, place in line.get("artifact", {}).items():
            artifacts[name] = Path(place).read_bytes()
        params |= flatten_params(line.get("params", {}))
        tags = line.get("tags", tags)
        renamed |= line.get("renamed", {})
        status = line.get("status", status)
    return {
        "metrics": metrics,
        "texts": texts,
        "histograms": histograms,
        "artifacts": artifacts,
        "params": params,
        "tags": tags,
        "renamed": renamed,
        "status": status,
    }
