"""Parquet in the real schema of Neptune's exporter, with its traps, read value for value."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.importers.helpers import (
    flipped,
    of_type,
    only_run,
    params_of,
    points_of,
    read_hostile,
    records_of,
    same,
    status_of,
    tags_of,
)
from tracker_bridge.importers import Damage, ForeignFormatError, Reading, discover
from tracker_bridge.importers._sorter import PointSorter
from tracker_bridge.records import Artifact, Histogram, Metrics, RunStarted, Text, unpack_values

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

KIND = "neptune-export"
T0 = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)

# neptune-exporter, src/neptune_exporter/model.py
SCHEMA = pa.schema(
    [
        ("project_id", pa.string()),
        ("run_id", pa.string()),
        ("attribute_path", pa.string()),
        ("attribute_type", pa.string()),
        ("step", pa.decimal128(18, 6)),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("int_value", pa.int64()),
        ("float_value", pa.float64()),
        ("string_value", pa.string()),
        ("bool_value", pa.bool_()),
        ("datetime_value", pa.timestamp("ms", tz="UTC")),
        ("string_set_value", pa.list_(pa.string())),
        ("file_value", pa.struct([("path", pa.string())])),
        (
            "histogram_value",
            pa.struct([("type", pa.string()), ("edges", pa.list_(pa.float64())), ("values", pa.list_(pa.float64()))]),
        ),
    ]
)


def row(path: str, kind: str, step: str | None = None, ms: int | None = None, **values: Any) -> dict[str, Any]:
    return {
        "project_id": "team/project",
        "run_id": "RUN-1",
        "attribute_path": path,
        "attribute_type": kind,
        "step": None if step is None else Decimal(step),
        "timestamp": None if ms is None else T0 + dt.timedelta(milliseconds=ms),
        **values,
    }


def point(path: str, step: str, value: float, ms: int) -> dict[str, Any]:
    # pandas, which the exporter goes through, turns NaN into null
    return row(path, "float_series", step, ms, float_value=None if math.isnan(value) else value)


def write(folder: Path, *parts: list[dict[str, Any]], first: int = 0, name: str = "RUN-1-ab12") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(parts, first):
        path = folder / f"{name}_part_{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="snappy")
    return folder


def full(folder: Path) -> Path:
    (folder / "files" / "team_project-aa").mkdir(parents=True)
    (folder / "files" / "team_project-aa" / "model.bin").write_text("weights")
    return write(
        folder / "data" / "team_project-aa",
        [
            *(point("a/b", f"{s}.000000", s * 1.0, s) for s in (5, 4, 3)),
            point("frac", "1.200000", 1.0, 12),
            point("frac", "1.700000", 2.0, 17),
            row("lr", "float", float_value=0.1),
            row("absent", "float"),
            row("n", "int", int_value=7),
            row("on", "bool", bool_value=False),
            row("s", "string", string_value="https://user:hunter22@example.org"),
            row("when", "datetime", datetime_value=T0),
            row("sys/name", "string", string_value="exp"),
            row("sys/creation_time", "datetime", datetime_value=T0),
            row("sys/tags", "string_set", string_set_value=["x", "y"]),
            row("sys/group_tags", "string_set", string_set_value=["g"]),
            row("sys/failed", "bool", bool_value=True),
            row("sys/forking/parent", "string", string_value="RUN-0"),
            row("sys/forking/step", "float", float_value=10.0),
        ],
        [
            *(point("a/b", f"{s}.000000", s * 1.0, s) for s in (0, 2, 1)),
            *(point("a_b", f"{s}.000000", -s * 1.0, s) for s in range(3)),
            point("bad", "0.000000", math.nan, 1),
            point("bad", "1.000000", math.inf, 2),
            point("bad", "2.000000", -math.inf, 3),
            row("text", "string_series", "1.000000", 5, string_value="hello é"),
            row(
                "h",
                "histogram_series",
                "1.000000",
                6,
                histogram_value={"type": "COUNTING", "edges": [0, 1, 3], "values": [2, 5]},
            ),
            row(
                "d",
                "histogram_series",
                "1.000000",
                6,
                histogram_value={"type": "DENSITY", "edges": [0, 1, 3], "values": [0.5, 0.25]},
            ),
            row("model", "file", file_value={"path": "model.bin"}),
            row("checkpoints", "file_series", "2.000000", 7, file_value={"path": "model.bin"}),
            row("outside", "file", file_value={"path": "../../secret"}),
            row("set", "file_set", file_value={"path": "x"}),
        ],
    )


def test_an_export_comes_back_value_for_value(tmp_path: Path) -> None:
    """NaN stored as null, fractional steps, parts out of order, absent params, look-alike names and forks are right."""
    full(tmp_path)
    (tmp_path / "secret").write_text("private")
    reading = Reading()
    records = records_of(KIND, tmp_path / "data", reading)
    run = only_run(KIND, tmp_path / "data")
    assert (run.project, run.name) == ("team/project", "RUN-1")
    expected = {
        "a/b": [(s, s * 1.0) for s in range(6)],
        "a_b": [(s, -s * 1.0) for s in range(3)],
        "frac": [(1.2, 1.0), (1.7, 2.0)],
        "bad": [(0, math.nan), (1, math.inf), (2, -math.inf)],
    }
    assert same(points_of(records), expected)  # type: ignore[arg-type]
    params = params_of(records)
    assert {k: params[k] for k in ("lr", "n", "on", "s", "when")} == {
        "lr": 0.1,
        "n": 7,
        "on": False,
        "s": "https://<secret>@example.org",
        "when": T0.isoformat(),
    }
    assert "absent" not in params
    assert tags_of(records) == {"x": None, "y": None, "g": None}
    assert [(t.name, t.text, t.step) for t in of_type(records, Text)] == [("text", "hello é", 1)]
    histograms = {h.name: unpack_values(h.counts).tolist() for h in of_type(records, Histogram)}
    assert histograms == {"h": [2.0, 5.0], "d": [0.5, 0.5]}
    artifacts = {(a.name, a.step): Path(a.path).read_text() for a in of_type(records, Artifact)}
    assert artifacts == {("model", None): "weights", ("checkpoints", 2): "weights"}
    assert reading.left_out == {"files that are not beside the export": 1, "Neptune attributes of type file_set": 1}
    assert status_of(records) == "failed"
    (started,) = of_type(records, RunStarted)
    assert started.time_ns == int(T0.timestamp()) * 10**9
    assert started.provenance["forked_from"] == {"run_id": "RUN-0", "step": 10.0}
    times = [record.time_ns for record in of_type(records, Metrics)]
    assert times == sorted(times)
    assert times[0] == int(T0.timestamp()) * 10**9


def test_an_interrupted_export_is_refused_unless_salvaged(tmp_path: Path) -> None:
    """Without part 0 the export is known to be incomplete: an error, and what is there when asked for."""
    write(tmp_path, [point("x", "1.000000", 1.0, 1)], first=1)
    with pytest.raises(ForeignFormatError, match="part 0 is missing"):
        records_of(KIND, tmp_path)
    damage: list[Damage] = []
    assert points_of(records_of(KIND, tmp_path, Reading(on_damage=damage.append))) == {"x": [(1, 1.0)]}
    assert len(damage) == 1
    write(tmp_path, [point("x", "0.000000", 0.0, 0)])
    assert len(points_of(records_of(KIND, tmp_path))["x"]) == 2


def test_runs_of_one_folder_are_told_apart(tmp_path: Path) -> None:
    """Parts belong together by their name, whatever the order of the directory."""
    for name in ("RUN-1-ab12", "RUN-10-cd34", "odd_part_1_name-ef"):
        write(tmp_path, [point("x", "1.000000", 1.0, 1)], [point("x", "2.000000", 2.0, 2)], name=name)
    assert [len(run.paths) for run in discover(KIND, tmp_path)] == [2, 2, 2]


def test_a_row_that_does_not_fit_its_type_costs_only_itself(tmp_path: Path) -> None:
    """A histogram with the wrong number of edges is damage that names the attribute."""
    bad = row(
        "h", "histogram_series", "1.000000", 1, histogram_value={"type": "COUNTING", "edges": [0], "values": [2, 5]}
    )
    write(tmp_path, [bad, point("x", "1.000000", 1.0, 1)])
    with pytest.raises(ForeignFormatError, match="'h'"):
        records_of(KIND, tmp_path)
    damage: list[Damage] = []
    assert points_of(records_of(KIND, tmp_path, Reading(on_damage=damage.append))) == {"x": [(1, 1.0)]}


def test_hostile_files_are_errors_that_name_them(tmp_path: Path) -> None:
    """Cut, flipped, foreign or absurdly expanding parquet is refused with its path and nothing worse."""
    write(tmp_path, [point(f"m/{i % 7}", f"{i}.000000", i * 0.5, i) for i in range(2000)])
    (path,) = tmp_path.glob("*.parquet")
    data = path.read_bytes()
    for size in (0, 3, 4, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert read_hostile(KIND, path)[1], size
    for _, changed in flipped(data, seed=2, count=150):
        path.write_bytes(changed)
        read_hostile(KIND, path)
    path.write_bytes(b"SQLite format 3\x00" * 100)
    with pytest.raises(ForeignFormatError, match="not a sound parquet file"):
        records_of(KIND, tmp_path)
    pq.write_table(pa.table({"other": [1, 2]}), path)
    with pytest.raises(ForeignFormatError, match="no column attribute"):
        records_of(KIND, tmp_path)
    zeros = pa.table({"attribute_path": pa.array(["x"] * 5_000_000), "attribute_type": pa.array(["float"] * 5_000_000)})
    pq.write_table(zeros, path, compression="zstd")
    with pytest.raises(ForeignFormatError, match="claims"):
        records_of(KIND, tmp_path)


def test_the_sorter_orders_more_points_than_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces on disk merge to the order of one stable sort by time and step, and rows are whole."""
    from tracker_bridge.importers import _sorter

    monkeypatch.setattr(_sorter, "_PIECE", 1000)
    monkeypatch.setattr(_sorter, "_MERGED", 64)
    monkeypatch.setattr(_sorter, "_LEAST_BLOCK", 16)
    monkeypatch.setattr(_sorter, "_ROWS", 7)
    rng = np.random.default_rng(0)
    times, steps = rng.integers(0, 50, 7000) * 10**6, rng.integers(-5, 20, 7000)
    names, values = rng.integers(0, 5, 7000), rng.random(7000)
    with PointSorter() as sorter:
        ids = np.array([sorter.name_id(f"n{i}") for i in range(5)])
        for low in range(0, 7000, 300):
            part = slice(low, low + 300)
            sorter.add(times[part], steps[part], 0, ids[names[part]], values[part])
        rows = list(sorter.rows())
        folder = sorter._folder.name
        assert len(list(Path(folder).iterdir())) >= 6
    assert not Path(folder).exists()
    flat = [(r.time_ns, r.step, name, value) for r in rows for name, value in r.values.items()]
    assert sorted(flat) == sorted(
        (int(t), int(s), f"n{n}", float(v)) for t, s, n, v in zip(times, steps, names, values, strict=True)
    )
    keys = [(r.time_ns, r.step) for r in rows]
    assert keys == sorted(keys)
