"""Reads what a run's directory of event files holds, with TensorBoard's Python reader and nothing of the adapter's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.util import tensor_util

from tracker_bridge.testing import Point, StoredRun


def accumulate(directory: Path) -> EventAccumulator:
    """Everything in a directory of event files, unsampled."""
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def text_of(event: Any) -> str:
    return tensor_util.make_ndarray(event.tensor_proto).item().decode()


def json_of(text: str) -> Any:
    return json.loads(text.removeprefix("```json\n").removesuffix("\n```"))


def without_prefix(tag: str, suffix: str) -> str | None:
    return tag.removesuffix(suffix) if tag.endswith(suffix) else None


def stored_run(directory: Path) -> StoredRun:
    """The form that the conformance suite compares; sub-runs of late points count as part of the run."""
    main = accumulate(directory)
    metrics: dict[str, list[Point]] = {}
    for lane in [main, *(accumulate(path) for path in sorted(directory.glob("late*")))]:
        for tag in lane.Tags()["scalars"]:
            points = [Point(event.step, event.value, event.wall_time) for event in lane.Scalars(tag)]
            metrics.setdefault(tag, []).extend(points)
    tensors = {tag: main.Tensors(tag) for tag in main.Tags()["tensors"]}
    texts = {
        name: [(event.step, text_of(event)) for event in events]
        for tag, events in tensors.items()
        if (name := without_prefix(tag, "/text_summary")) is not None
    }
    sheets = {
        name: json_of(texts[f"tracker_bridge/{name}"][-1][1])
        for name in ("run", "params", "tags", "names")
        if f"tracker_bridge/{name}" in texts
    }
    artifacts: dict[str, bytes | None] = {
        name: tensor_util.make_ndarray(events[-1].tensor_proto)[2]
        for tag, events in tensors.items()
        if (name := without_prefix(tag, "/image")) is not None
    }
    artifacts |= {name.removeprefix("artifacts/"): None for name in texts if name.startswith("artifacts/")}
    histograms = {}
    for tag, events in tensors.items():
        name = without_prefix(tag, "/histogram")
        if name is not None:
            buckets = [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in events]
            histograms[name] = [(step, [*rows[:, 0], rows[-1, 1]], [*rows[:, 2]]) for step, rows in buckets]
    params_file = directory / "params.json"
    return StoredRun(
        metrics={name: sorted(points) for name, points in metrics.items()},
        renamed=sheets.get("names", {}),
        params=hparams_of(main),
        full_params=json.loads(params_file.read_text()) if params_file.exists() else None,
        tags=sheets.get("tags", {}),
        texts=texts,
        histograms=histograms,
        artifacts=artifacts,
        status=texts["tracker_bridge/status"][-1][1] if "tracker_bridge/status" in texts else None,
        context=sheets.get("run", {}),
        runs=sum(1 for path in directory.parent.iterdir() if path.name.endswith(directory.name[-7:])),
    )


def hparams_of(accumulator: EventAccumulator) -> dict[str, Any]:
    content = accumulator.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
    session = hparams.parse_session_start_info_plugin_data(content)
    params: dict[str, Any] = {}
    for name, value in session.hparams.items():
        number = value.WhichOneof("kind") == "number_value"
        plain = getattr(value, value.WhichOneof("kind"))
        # A number is a double there; 3 and 3.0 are the same.
        params[name] = int(plain) if number and plain.is_integer() else plain
    return params
