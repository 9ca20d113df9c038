"""The `jsonl` adapter of the core, through the suite that every adapter passes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests import scripts
from tracker_bridge.adapter import RetryLater, RunInfo, flatten_params
from tracker_bridge.builtin import JsonlAdapter
from tracker_bridge.builtin._jsonl import JsonlOptions, read_lines
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


TWO = """
import sys
import tracker_bridge as bridge
same = {"path": "same.jsonl"} if "same" in sys.argv else {}
with bridge.init(backends={"jsonl": same, "again": {"adapter": "jsonl", **same}}, run_id="r") as run:
    for step in range(2000):
        run.log_metrics({"x": float(step)}, step=step)
        if not same and not step % 100:
            run.flush(20)
    delivery = run.close(timeout=2 if same else 30)
jsonl, again = delivery["jsonl"], delivery["again"]
print(jsonl.pending + again.pending, jsonl.error or again.error)
"""


def test_two_backends_of_one_run_have_a_file_each(tmp_path: Path) -> None:
    """Each has every line once; in one file, lines of one ended in the midst of the other's (15 of 1,436 lost)."""
    done = scripts.run(tmp_path, TWO)
    assert done.stdout.split() == ["0", "None"], done.stderr
    for name in ("r.jsonl", "r-again.jsonl"):
        assert scripts.metrics(tmp_path / name, "x") == [(step, float(step)) for step in range(2000)]


def test_two_backends_with_one_file_never_write_into_it_together(tmp_path: Path) -> None:
    """Whoever comes second waits; in the end every line is there once."""
    done = scripts.run(tmp_path, TWO, "same")
    assert done.returncode == 0, done.stderr
    assert scripts.metrics(tmp_path / "same.jsonl", "x") == [(step, float(step)) for step in range(2000)]


def test_a_file_that_another_backend_has_open_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """The second says what to do until the first is closed; an opening of the very same backend takes over."""
    adapters = {name: JsonlAdapter(JsonlOptions(path="same.jsonl")) for name in ("one", "two", "one again")}

    def opened(name: str) -> None:
        private = tmp_path / name.split()[0]
        adapters[name].open(RunInfo("r", name.split()[0], None, None, None, tmp_path, private, cwd=tmp_path))

    opened("one")
    with pytest.raises(RetryLater, match=r"another backend writes to .*same.jsonl; give each a `path` of its own"):
        opened("two")
    opened("one again")
    with pytest.raises(RetryLater):
        opened("two")
    adapters["one again"].close("finished")
    opened("two")
    adapters["two"].close("finished")
