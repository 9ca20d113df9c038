"""CSV and JSON-lines files in the shapes that people have."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.importers.helpers import (
    flipped,
    of_type,
    params_of,
    points_of,
    read_hostile,
    records_of,
    same,
    status_of,
    tags_of,
)
from tracker_bridge.importers import Damage, ForeignFormatError, Reading, discover
from tracker_bridge.records import Artifact, Histogram, Metrics, Text, unpack_values

SERIES = {"loss": [(0, 1.5), (2, math.nan), (3, -math.inf)], "acc": [(0, 0.25), (3, 1e-300)]}


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "step,loss,acc\n0,1.5,0.25\n2,nan,\n3,-inf,1e-300\n",
        "Step;loss;acc\n0;1.5;0.25\n2;NaN;\n3;-Infinity;1e-300\n",
        "global_step\tloss\tacc\n0\t1.5\t0.25\n2\tnan\t\n3\t-inf\t1e-300\n",
        "\ufeffname,step,value\nloss,0,1.5\nacc,0,0.25\nloss,2,nan\nloss,3,-inf\nacc,3,1e-300\n",
    ],
    ids=["wide", "semicolons", "tabs", "long"],
)
def test_wide_and_long_csv(tmp_path: Path, text: str) -> None:
    """The columns' names say which shape it is; empty cells are absent points, and NaN is NaN."""
    path = file(tmp_path, "run.csv", text)
    assert same(points_of(records_of("csv", path)), SERIES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "lines",
    [
        [
            {"step": 0, "loss": 1.5, "acc": 0.25},
            {"step": 2, "loss": math.nan},
            {"step": 3, "loss": -math.inf, "acc": 1e-300},
        ],
        [
            {"metric": n, "step": s, "value": v if math.isfinite(v) else str(v)}
            for n, points in SERIES.items()
            for s, v in points
        ],
    ],
    ids=["wide", "long"],
)
def test_wide_and_long_json_lines(tmp_path: Path, lines: list[dict[str, object]]) -> None:
    """The same for JSON lines, with bare NaN or with text for what JSON cannot say."""
    path = file(tmp_path, "run.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert same(points_of(records_of("jsonl", path)), SERIES)  # type: ignore[arg-type]


def test_times_texts_nesting_and_fractions(tmp_path: Path) -> None:
    """Times in seconds, milliseconds, nanoseconds or ISO form; nested objects; words; steps that are fractions."""
    path = file(
        tmp_path,
        "run.jsonl",
        '{"step": 1, "_timestamp": 1700000000.5, "a": {"b": 1, "c": true}, "note": "hello", "list": [1]}\n'
        '{"step": 1.5, "timestamp": 1700000001500, "a": {"b": 2}}\n'
        '{"step": 2, "time_ns": 1700000002000000001, "x": 1}\n'
        '{"step": 3, "time": "2023-11-14T22:13:23.000005Z", "x": 2}\n',
    )
    reading = Reading()
    records = records_of("jsonl", path, reading)
    rows = of_type(records, Metrics)
    assert [row.time_ns for row in rows] == [
        1700000000500000000,
        1700000001500000000,
        1700000002000000001,
        1700000003000005000,
    ]
    assert points_of(records) == {"a/b": [(1, 1.0), (1.5, 2.0)], "a/c": [(1, 1.0)], "x": [(2, 1.0), (3, 2.0)]}
    assert [(t.name, t.text) for t in of_type(records, Text)] == [("note", "hello")]
    assert reading.left_out == {"lists": 1}


def test_without_a_step_rows_are_counted(tmp_path: Path) -> None:
    """A table without steps has the row number as its step."""
    path = file(tmp_path, "run.csv", "loss\n3\n2\n1\n")
    assert points_of(records_of("csv", path)) == {"loss": [(0, 3.0), (1, 2.0), (2, 1.0)]}


def test_lines_of_our_own_carry_everything(tmp_path: Path) -> None:
    """Params, tags, text, histogram, artifact and status of an exported run come back."""
    file(tmp_path, "model.bin", "weights")
    file(tmp_path.parent, "secret", "private")
    lines: list[dict[str, object]] = [
        {"run_id": "r", "project": "p", "name": None, "attempt": 1},
        {"time_ns": 5, "params": {"lr": 0.1, "opt": {"name": "adam"}}},
        {"time_ns": 6, "tags": {"a": None, "b": "x"}},
        {"time_ns": 7, "step": 1, "metrics": {"loss": 0.5, "bad": "nan", "worse": "-inf"}},
        {"time_ns": 8, "tags": {"b": "y"}},
        {"time_ns": 9, "step": 1, "text": {"note": "hi"}},
        {"time_ns": 9, "step": 1, "histogram": {"h": {"edges": [0, 1, 2], "counts": [3, 4]}}},
        {"time_ns": 9, "step": None, "artifact": {"model": "model.bin"}},
        {"time_ns": 9, "step": None, "artifact": {"evil": "../secret"}},
        {"status": "failed"},
    ]
    path = file(tmp_path, "run.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    reading = Reading()
    records = records_of("jsonl", path, reading)
    assert records[0].time_ns == 5
    assert params_of(records) == {"lr": 0.1, "opt": {"name": "adam"}}
    assert tags_of(records) == {"b": "y"}
    expected = {"loss": [(1, 0.5)], "bad": [(1, math.nan)], "worse": [(1, -math.inf)]}
    assert same(points_of(records), expected)  # type: ignore[arg-type]
    assert [(t.name, t.text, t.step) for t in of_type(records, Text)] == [("note", "hi", 1)]
    assert unpack_values(of_type(records, Histogram)[0].counts).tolist() == [3.0, 4.0]
    assert [(a.name, Path(a.path).read_text()) for a in of_type(records, Artifact)] == [("model", "weights")]
    assert reading.left_out == {"files outside of the imported path, or gone": 1}
    assert status_of(records) == "failed"


def test_a_tree_of_files_is_a_run_for_each(tmp_path: Path) -> None:
    """Every file below a folder is a run, with the path as its name and an id that stays."""
    (tmp_path / "a").mkdir()
    file(tmp_path, "x.csv", "step,loss\n1,2\n")
    file(tmp_path / "a", "x.csv", "step,loss\n1,2\n")
    file(tmp_path, "other.txt", "no")
    runs = list(discover("csv", tmp_path))
    assert [run.name for run in runs] == ["a/x", "x"]
    assert len({run.run_id for run in runs}) == 2
    assert {run.run_id for run in discover("csv", tmp_path)} == {run.run_id for run in runs}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("step,loss\n1,2\nabc,3\n2,4\n", "line 3"),
        ("step,loss\n1,2\n1,2,3\n2,4\n", "line 3"),
        ("run,step,loss\na,1,2\n", "line 1"),
        ("step,step\n1,2\n", "line 1"),
        ("", "line 1"),
        ('step,loss\n1,2\n2,"never ends\n', "line 3"),
    ],
)
def test_tables_that_are_none_name_the_line(tmp_path: Path, text: str, line: str) -> None:
    """A row that does not fit, or a column that means several runs, is an error with file and line."""
    path = file(tmp_path, "run.csv", text)
    with pytest.raises(ForeignFormatError, match=rf"run.csv.*{line}"):
        records_of("csv", path)


def test_json_lines_that_are_none(tmp_path: Path) -> None:
    """A broken line costs itself; a last line without its end is what a killed writer leaves."""
    good = '{"step": 1, "x": 1}\n'
    bad = ["nonsense\n", "[1]\n", "[" * 100_000 + "\n", '{"step": "x", "y": 1}\n', '{"metrics": 1, "step": {}}\n']
    path = file(tmp_path, "run.jsonl", good + "".join(bad) + '{"step": 2, "x": 2}\n{"step": 3, "x"')
    with pytest.raises(ForeignFormatError, match="line 2"):
        records_of("jsonl", path)
    damage: list[Damage] = []
    reading = Reading(on_damage=damage.append)
    points = points_of(records_of("jsonl", path, reading))
    assert points["x"] == [(1, 1.0), (2, 2.0)]
    assert len(damage) == 5
    assert reading.left_out == {"last line of a file, cut off": 1}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_flipped_bits_do_no_harm(tmp_path: Path, kind: str) -> None:
    """Text with any bit flipped is read or refused, nothing else."""
    text = (
        "step,loss,acc\n0,1.5,0.25\n2,nan,\n"
        if kind == "csv"
        else '{"step": 0, "time": 5, "loss": 1.5}\n{"status": "failed"}\n'
    )
    path = file(tmp_path, f"run.{kind}", text)
    for _, changed in flipped(path.read_bytes(), seed=3, count=300):
        path.write_bytes(changed)
        read_hostile(kind, path)
    path.write_bytes(b"\x80\x04\x95\x00\xff" * 500)
    read_hostile(kind, path)
