"""A run as a table, through the reader's own methods."""

from __future__ import annotations

from pathlib import Path

from tracker_bridge import read
from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import Metrics
from tracker_bridge.rundir import Manifest, RunPaths, write_json


def test_series_as_arrow_and_pandas_tables(tmp_path: Path) -> None:
    """One long table with a row for each point."""
    paths = RunPaths(tmp_path)
    write_json(paths.manifest, Manifest(run_id="r", created_ns=1))
    with JournalWriter.create(paths.journal, "r") as journal:
        for step in range(3):
            journal.append(Metrics(step, step, {"loss": step / 2, "acc": 1.0}))
    run = read(tmp_path)
    assert run.to_arrow().num_rows == 6
    frame = run.to_pandas()
    assert frame[frame["name"] == "loss"]["value"].tolist() == [0.0, 0.5, 1.0]
