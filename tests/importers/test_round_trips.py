"""A run out to each tracker, back from what that tracker stored, out to another one, and back again: 16 pairs.

Everything is real: the journal, `tracker-bridge replay` in a process of its own, the four SDKs, and the importers on
the files that those left. What a tracker cannot hold is written down here, in `LIMITS`, and nowhere else.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.importers.helpers import of_type, params_of, points_of, status_of, tags_of
from tracker_bridge.adapter import flatten_params
from tracker_bridge.importers import Reading, import_tree
from tracker_bridge.journal import Entry, JournalWriter, scan
from tracker_bridge.records import (
    Histogram,
    Metrics,
    Params,
    Record,
    RunFinished,
    RunStarted,
    Tags,
    Text,
    pack_values,
    unpack_values,
)
from tracker_bridge.rundir import Manifest, RunPaths, write_json

T0 = 1_700_000_000_000_000_000
TRACKERS = ("neptune", "wandb", "mlflow", "tensorboard")
Series = dict[str, list[tuple[int | float, float]]]


def original() -> list[Record]:
    """20 series with NaN, infinities, late and repeated steps and odd names; params, tags, texts, histograms."""
    records: list[Record] = [
        RunStarted(T0, "original", 1, 1, "host"),
        Params(
            T0, {"lr": 0.1, "steps": 100, "opt": {"name": "adam", "amsgrad": False}, "notes": "é", "betas": [0.9, 0.99]}
        ),
        Tags(T0, {"baseline": None, "gradient_tracking": None}),
    ]
    for step in range(30):
        values = {f"layer/{i}/norm": math.sin(step * (i + 1)) * 10.0 ** (i - 8) for i in range(16)}
        if step == 7:
            values |= {"layer/0/norm": math.nan, "layer/1/norm": math.inf, "layer/2/norm": -math.inf}
        records.append(Metrics(T0 + (step + 1) * 10**9, step, values))
        records.append(Metrics(T0 + (step + 1) * 10**9 + 10**6, step, {"odd name @ é": step * 0.5}))
    late = T0 + 100 * 10**9
    for number, (step, value) in enumerate([(5, 1.0), (6, 2.0), (2, 3.0), (6, 4.0), (7, 5.0)]):
        records.append(Metrics(late + number * 10**9, step, {"late": value}))
    records.append(Metrics(late + 10 * 10**9, 40, {"repeated": 1.0, "large": 2.0**60}))
    records.append(Metrics(late + 11 * 10**9, 40, {"repeated": 2.0}))
    records.append(Text(late + 12 * 10**9, "note", "two\nlines of é & <b>text</b>", 41))
    edges, counts = pack_values([-1.0, 0.0, 0.5, 2.0]), pack_values([3.0, 0.0, 7.0])
    records.append(Histogram(late + 13 * 10**9, "weights", 42, edges, counts))
    records.append(RunFinished(late + 14 * 10**9, "failed"))
    return records


@dataclass(frozen=True)
class Limits:
    """What a tracker does to a run, documented with its adapter."""

    values: Callable[[float], float] = float
    increasing: bool = False
    params: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda params: params)
    resolution_ns: int = 1
    statuses: dict[str, str] = field(default_factory=dict)


def neptune_params(params: dict[str, Any]) -> dict[str, Any]:
    flat = flatten_params(params)
    return {key: json.dumps(value) if isinstance(value, list) else value for key, value in flat.items()}


LIMITS = {
    # Late and repeated steps of a series are refused by Neptune; params are flat, a list of numbers is text.
    "neptune": Limits(increasing=True, params=neptune_params),
    # Times are seconds as float64.
    "wandb": Limits(resolution_ns=1000),
    # Times are milliseconds.
    "mlflow": Limits(resolution_ns=10**6),
    # Values are float32, times seconds as float64.
    "tensorboard": Limits(values=lambda value: float(np.float32(value)), resolution_ns=1000),
}


def limited(series: Series, limits: Limits) -> Series:
    """The series as the tracker can hold them."""
    out: Series = {}
    for name, points in series.items():
        last = -math.inf
        for step, value in points:
            if limits.increasing and step <= last:
                continue
            last = max(last, step)
            out.setdefault(name, []).append((step, limits.values(value)))
    return out


def write_run(root: Path, records: list[Record]) -> RunPaths:
    paths = RunPaths(root)
    paths.files.mkdir(parents=True)
    with JournalWriter.create(paths.journal, root.name) as journal:
        for record in records:
            assert journal.append(record) is not None  # type: ignore[arg-type]
    manifest = Manifest(
        run_id=root.name,
        project="team/project",
        experiment="exp",
        name="nice",
        status="failed",
        created_ns=T0,
        finished_ns=records[-1].time_ns,
    )
    write_json(paths.manifest, manifest)
    return paths


def config_of(folder: Path) -> Path:
    """A configuration with all four trackers, each storing below `folder`."""
    folder.mkdir()
    backends = {
        "neptune": {"mode": "offline", "log_directory": str(folder / "neptune")},
        "wandb": {"mode": "offline", "dir": str(folder / "wandb")},
        "mlflow": {
            "tracking_uri": f"sqlite:///{folder}/mlflow/mlflow.db",
            "artifact_location": str(folder / "mlflow" / "artifacts"),
        },
        "tensorboard": {"log_dir": str(folder / "tensorboard")},
    }
    for name in backends:
        (folder / name).mkdir()
    path = folder / "all.json"
    path.write_text(json.dumps({"project": "team/project", "backends": backends}))
    return path


def replay(run: Path, config: Path) -> None:
    """`tracker-bridge replay RUN --to CONFIG`."""
    command = [sys.executable, "-m", "tracker_bridge", "replay", str(run), "--to", str(config), "--json"]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "HOME": str(config.parent)}
    done = subprocess.run(command, cwd=config.parent, capture_output=True, text=True, timeout=110, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


KINDS = {"neptune": "neptune-db", "wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboard"}


def back(folder: Path, tracker: str, queue: Path) -> Path:
    """The run directory that the tracker's files are imported into."""
    report = import_tree(KINDS[tracker], folder / tracker, queue, workers=1)
    assert not report.failed, report.failed
    (outcome,) = report.imported
    assert outcome.dir is not None
    assert not outcome.left_out, outcome.left_out
    return Path(outcome.dir)


def journal_of(run: Path) -> list[Record]:
    return [item.record for item in scan(RunPaths(run).journal) if isinstance(item, Entry)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The original, sent to all four trackers and imported from each: tracker -> run directory."""
    folder = tmp_path_factory.mktemp("first")
    run = write_run(folder / "original", original())
    config = config_of(folder / "out")
    replay(run.root, config)
    return {tracker: back(folder / "out", tracker, folder / "queue") for tracker in TRACKERS}


@pytest.fixture(scope="module")
def second(base: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where the run that came back from a tracker was sent to in turn."""
    sent: dict[str, Path] = {}

    def folder_of(first: str) -> Path:
        if first not in sent:
            folder = tmp_path_factory.mktemp(f"from-{first}")
            config = config_of(folder / "out")
            replay(base[first], config)
            sent[first] = folder
        return sent[first]

    return folder_of


def check(records: list[Record], through: list[Limits]) -> None:
    """The records equal the original as far as the trackers they went through can hold it."""
    expected, params = points_of(original()), params_of(original())
    for limits in through:
        expected, params = limited(expected, limits), limits.params(params)
    found = points_of(records)
    assert sorted(found) == sorted(expected)
    for name, points in expected.items():
        # A tracker may give the points of one series and time in any order; none here shares a time.
        assert repr(found[name]) == repr(points), name
    times = {name: times_of(original(), name) for name in expected}
    resolution = sum(limits.resolution_ns for limits in through)
    if not any(limits.increasing for limits in through):
        for name, wanted in times.items():
            got = times_of(records, name)
            assert all(abs(a - b) <= max(resolution, 2 * 10**6) for a, b in zip(got, wanted, strict=True)), name
    assert as_text(params_of(records)) == as_text(params)
    assert set(tags_of(records)) == {"baseline", "gradient_tracking"}
    texts = [(text.name, text.text, text.step) for text in of_type(records, Text)]
    assert texts == [("note", "two\nlines of é & <b>text</b>", 41)]
    (histogram,) = of_type(records, Histogram)
    assert (histogram.name, histogram.step) == ("weights", 42)
    assert unpack_values(histogram.edges).tolist() == [-1.0, 0.0, 0.5, 2.0]
    assert unpack_values(histogram.counts).tolist() == [3.0, 0.0, 7.0]
    assert status_of(records) == "failed"
    (started,) = of_type(records, RunStarted)
    assert abs(started.time_ns - T0) <= 2 * 10**6


def times_of(records: list[Record], name: str) -> list[int]:
    return [record.time_ns for record in of_type(records, Metrics) if name in record.values]


def as_text(params: dict[str, Any]) -> dict[str, Any]:
    """Params with nesting and types as the least of the trackers keeps them, so that chains of them compare."""
    return {key.replace(".", "/"): value for key, value in flatten_params(params).items()}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_comes_back_from_a_tracker(base: dict[str, Path], tracker: str) -> None:
    """What the tracker stored is the original, up to the tracker's documented limits."""
    check(journal_of(base[tracker]), [LIMITS[tracker]])


@pytest.mark.slow
@pytest.mark.parametrize("to", TRACKERS)
@pytest.mark.parametrize("first", TRACKERS)
def test_a_run_moves_from_one_tracker_to_another(
    second: Callable[[str], Path], tmp_path: Path, first: str, to: str
) -> None:
    """Out of one tracker and into another: the original, up to the limits of both."""
    folder = second(first)
    check(journal_of(back(folder / "out", to, tmp_path / "queue")), [LIMITS[first], LIMITS[to]])


def test_every_limit_is_that_of_its_adapter() -> None:
    """The limits used here follow from what each adapter declares about itself."""
    from tracker_bridge.registry import adapter_class

    for tracker, limits in LIMITS.items():
        can = adapter_class(tracker).capabilities
        assert limits.increasing == (can.steps == "increasing")
        assert (limits.values(0.1) != 0.1) == (can.value_type == "float32")
    assert Reading().left_out == {}
