"""Runs out of journals into files and frames, and back."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.importers.helpers import of_type, params_of, points_of, records_of, same, status_of, tags_of
from tracker_bridge.exporters import METADATA, Selection, export_run, print_run, to_arrow, to_pandas
from tracker_bridge.journal import JournalWriter
from tracker_bridge.reader import read
from tracker_bridge.records import (
    Alert,
    Artifact,
    Histogram,
    Metrics,
    NormVector,
    Params,
    RunFinished,
    RunStarted,
    SeriesTable,
    Tags,
    Text,
    pack_mask,
    pack_values,
)
from tracker_bridge.rundir import Manifest, NotARunError, RunPaths, write_json

T0 = 1_700_000_000_000_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with everything that a journal can hold."""
    paths = RunPaths(tmp_path / "runs" / "r1")
    paths.files.mkdir(parents=True)
    (paths.files / "model.bin").write_text("weights")
    with JournalWriter.create(paths.journal, "r1") as journal:
        for record in (
            RunStarted(T0, "r1", 1, 1, "host"),
            Params(T0 + 1, {"lr": 0.1, "opt": {"name": "adam", "weight": math.inf}}),
            Tags(T0 + 2, {"a": None, "b": "x"}),
            SeriesTable(T0 + 3, 0, "gradients", ("w", "b"), (4, 2)),
            *(Metrics(T0 + 10 + s, s, {"loss": 1.0 / (s + 1), 'acc, "q"\n': s * 0.1}) for s in range(5)),
            Metrics(T0 + 20, 5, {"loss": math.nan}),
            Metrics(T0 + 21, 6, {"loss": -math.inf}),
            NormVector(T0 + 22, 6, 0, pack_values([3.0, 4.0])),
            NormVector(T0 + 23, 7, 0, pack_values([math.nan, 0.0]), pack_mask(np.array([True, False])), skipped=True),
            Text(T0 + 24, "note", "hello é\n", 3),
            Histogram(T0 + 25, "h", 4, pack_values([0.0, 1.0, 2.0]), pack_values([5.0, 6.0])),
            Artifact(T0 + 26, "model", "files/model.bin", 2, "text/plain"),
            Alert(T0 + 27, "explosion", 7, "error", "boom", "it exploded", ("w",)),
            Tags(T0 + 28, {}, ("a",)),
            RunFinished(T0 + 30, "failed"),
        ):
            assert journal.append(record) is not None
    manifest = Manifest(run_id="r1", project="p", name="nice", status="failed", created_ns=T0, finished_ns=T0 + 30)
    write_json(paths.manifest, manifest)
    return paths.root


SERIES: dict[str, list[tuple[int | float, float]]] = {
    "loss": [*((s, 1.0 / (s + 1)) for s in range(5)), (5, math.nan), (6, -math.inf)],
    'acc, "q"\n': [(s, s * 0.1) for s in range(5)],
    "gradients/w": [(6, 3.0), (7, math.nan)],
    "gradients/b": [(6, 4.0)],
}


def without_extras(series: dict[str, list[tuple[int | float, float]]]) -> dict[str, list[tuple[int | float, float]]]:
    """Without the series that describe a norm vector as a whole."""
    assert [step for step, _ in series["gradients/total_norm"]] == [6, 7]
    return {name: points for name, points in series.items() if name in SERIES}


def test_csv_is_read_back_exactly(run: Path, tmp_path: Path) -> None:
    """Every value, also NaN, infinities and odd names, survives CSV and our importer of it."""
    done = export_run(run, "csv", tmp_path / "r1.csv")
    assert same(without_extras(points_of(records_of("csv", tmp_path / "r1.csv"))), SERIES)
    assert done.points == len((tmp_path / "r1.csv").read_text().replace('q""\n', "").splitlines()) - 1
    times = [record.time_ns for record in of_type(records_of("csv", tmp_path / "r1.csv"), Metrics)]
    assert times[0] == T0 + 10
    assert max(times) == T0 + 27


def test_json_lines_carry_everything_and_are_json(run: Path, tmp_path: Path) -> None:
    """The whole run comes back from its lines, and each line is strict JSON."""
    export_run(run, "jsonl", tmp_path / "runs" / "r1.jsonl")

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    for line in (tmp_path / "runs" / "r1.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    records = records_of("jsonl", tmp_path / "runs" / "r1.jsonl")
    assert same(without_extras(points_of(records)), SERIES)
    assert params_of(records) == {"lr": 0.1, "opt": {"name": "adam", "weight": "inf"}}
    assert tags_of(records) == {"b": "x"}
    texts = [(t.name, t.text, t.step) for t in of_type(records, Text)]
    assert texts == [("note", "hello é\n", 3), ("alerts/explosion", "boom\n\nit exploded", 7)]
    (histogram,) = of_type(records, Histogram)
    assert (histogram.edges, histogram.counts) == (pack_values([0.0, 1.0, 2.0]), pack_values([5.0, 6.0]))
    (artifact,) = of_type(records, Artifact)
    assert (artifact.name, artifact.step, artifact.media_type) == ("model", 2, "text/plain")
    assert Path(artifact.path).read_text() == "weights"
    assert status_of(records) == "failed"
    assert records[-1].time_ns == T0 + 30


def test_parquet_and_frames_hold_the_series_and_say_whose_they_are(run: Path, tmp_path: Path) -> None:
    """Arrow, pandas and Parquet hold equal columns with exact types; the run is described in the metadata."""
    pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = to_arrow(read(run))
    assert [str(field.type) for field in table.schema] == [
        "dictionary<values=string, indices=int32, ordered=0>",
        "int64",
        "timestamp[ns, tz=UTC]",
        "double",
    ]
    rows = table.to_pylist()
    series: dict[str, list[tuple[int | float, float]]] = {}
    for row in rows:
        series.setdefault(row["name"], []).append((row["step"], row["value"]))
    assert same(without_extras(series), SERIES)
    assert table["time_ns"].cast("int64").to_pylist()[0] == T0 + 10
    about = json.loads(table.schema.metadata[METADATA])
    assert (about["run_id"], about["status"], about["tags"]) == ("r1", "failed", {"b": "x"})
    done = export_run(run, "parquet", tmp_path / "r1.parquet")
    stored = parquet.read_table(tmp_path / "r1.parquet")
    assert done.points == stored.num_rows == table.num_rows
    assert repr(stored.to_pylist()) == repr(rows)
    frame = to_pandas(run)
    assert frame["value"].dtype == np.float64
    assert str(frame["time_ns"].dtype) == "datetime64[ns, UTC]"
    wide = frame[frame["name"] == "loss"].set_index("step")["value"]
    assert wide.loc[2] == 1.0 / 3
    assert math.isnan(wide.loc[5])


def test_fractional_steps_make_a_float_column(tmp_path: Path) -> None:
    """One fraction among the steps keeps all of them exact as float64."""
    pytest.importorskip("pyarrow")
    paths = RunPaths(tmp_path / "r")
    paths.root.mkdir()
    with JournalWriter.create(paths.journal, "r") as journal:
        journal.append(Metrics(1, 1, {"x": 1.0}))
        journal.append(Metrics(2, 1.5, {"x": 2.0}))
    write_json(paths.manifest, Manifest(run_id="r", created_ns=1))
    assert to_arrow(paths.root)["step"].to_pylist() == [1.0, 1.5]


def test_a_selection_takes_part_of_the_series_and_groups_norms(run: Path) -> None:
    """Globs choose series by name; norms can be put together."""
    file = io.StringIO()
    print_run(
        run,
        "csv",
        file,
        selection=Selection(include=["gradients/*"], exclude=["*_norm", "*/skipped"], group_by="total"),
    )
    names = {line.split(",")[0] for line in file.getvalue().splitlines()[1:]}
    assert "loss" not in names
    assert not any(name.endswith(("/w", "/b", "_norm")) for name in names)
    file = io.StringIO()
    assert print_run(run, "csv", file, selection=Selection(include=["loss"])).points == 7


def test_a_failed_export_leaves_the_old_file_and_no_other(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is replaced only by a whole file."""
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    (run / "journal").rename(run / "elsewhere")
    (run / "journal").write_text("not a folder")
    with pytest.raises(OSError, match="journal"):
        export_run(run, "jsonl", target)
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "runs"]
    with pytest.raises(NotARunError):
        export_run(tmp_path, "csv", target)


def test_missing_packages_are_named_with_their_install(run: Path, tmp_path: Path) -> None:
    """Without pyarrow, only Parquet and frames fail, and say what to install; importing the package needs neither."""
    code = f"""
import sys
sys.modules["pyarrow"] = sys.modules["pandas"] = None
from tracker_bridge.exporters import export_run, to_arrow, to_pandas
export_run({str(run)!r}, "csv", {str(tmp_path / "x.csv")!r})
for call in (to_arrow, to_pandas, lambda run: export_run(run, "parquet", {str(tmp_path / "x.parquet")!r})):
    try:
        call({str(run)!r})
    except ImportError as error:
        assert "pip install" in str(error), error
    else:
        raise SystemExit("no error")
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ.copy())
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "x.parquet").exists()
