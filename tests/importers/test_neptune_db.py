"""Databases of the real neptune-scale, offline and after a kill, read without it; and hostile ones."""

from __future__ import annotations

import math
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import UpdateRunSnapshot

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
from tracker_bridge.records import Artifact, Histogram, RunStarted, Text, unpack_values

KIND = "neptune-db"
FILE = "run_operations.sqlite3"

WRITER = """
import datetime, math, os, signal, sys
from neptune_scale import Run
from neptune_scale.types import File, Histogram

def main(folder, kill):
    os.chdir(folder)
    with open("model.txt", "w") as file:
        file.write("weights")
    options = dict(project="team/project", mode="offline", experiment_name="exp",
                   enable_console_log_capture=False, source_tracking_config=None)
    run = Run(run_id="run/1".replace("/", "-"), **options)
    run.log_configs({"lr": 0.1, "n": 3, "on": True, "s": "x", "names": ["a", "b"], "a/b": 1, "a_b": 2,
                     "when": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
                     "url": "https://user:hunter22@example.org/repo"})
    for step in range(300):
        run.log_metrics({f"m/{i}": step * 10.0 + i for i in range(10)}, step=step)
    for step, value in ((0, math.nan), (1.2, math.inf), (1.7, -math.inf), (2.000001, 1e308)):
        run.log_metrics({"one": value}, step=step)
    run.log_metrics({"preview": 1.0}, step=1, preview=True, preview_completion=0.5)
    run.log_metrics({"auto": 1.0}, step=None)
    run.log_metrics({"auto": 2.0}, step=None)
    run.log_string_series({"text": "hello \\u00e9"}, step=1)
    run.log_histograms({"h": Histogram([0, 1, 2], counts=[3, 4]),
                        "d": Histogram([0.0, 2.0, 4.0], densities=[0.1, 0.4])}, step=1)
    run.add_tags(["a", "b"])
    run.add_tags(["group"], group_tags=True)
    run.remove_tags(["b"])
    run.assign_files({"model": "model.txt", "bytes": File(b"abc")})
    run.log_files({"files": "model.txt"}, step=2)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    run.close()

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "kill")
"""


def write(folder: Path, how: str) -> Path:
    """A working directory in which the real SDK wrote a run and ended in a certain way."""
    work = folder / how
    work.mkdir()
    script = folder / f"{how}.py"
    script.write_text(WRITER)
    done = subprocess.run([sys.executable, str(script), str(work), how], capture_output=True, text=True, timeout=90)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    return work


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("neptune"), "close")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("neptune"), "kill")


def check_everything(work: Path) -> Reading:
    reading = Reading()
    records = records_of(KIND, work, reading)
    points = points_of(records)
    for index in range(10):
        assert points.pop(f"m/{index}") == [(step, step * 10.0 + index) for step in range(300)]
    expected = {
        "one": [(0, math.nan), (1.2, math.inf), (1.7, -math.inf), (2.000001, 1e308)],
        "auto": [(0, 1.0), (1, 2.0)],
    }
    assert same(points, expected)  # type: ignore[arg-type]
    assert params_of(records) == {
        "lr": 0.1,
        "n": 3,
        "on": True,
        "s": "x",
        "names": ["a", "b"],
        "a/b": 1,
        "a_b": 2,
        "when": "2026-01-02T00:00:00+00:00",
        "url": "https://<secret>@example.org/repo",
    }
    assert tags_of(records) == {"a": None, "group": None}
    assert [(t.name, t.text, t.step) for t in of_type(records, Text)] == [("text", "hello é", 1)]
    histograms = {
        h.name: (unpack_values(h.edges).tolist(), unpack_values(h.counts)) for h in of_type(records, Histogram)
    }
    assert histograms["h"][0] == [0.0, 1.0, 2.0]
    assert histograms["h"][1].tolist() == [3.0, 4.0]
    np.testing.assert_allclose(histograms["d"][1], [0.2, 0.8])
    artifacts = {(a.name, a.step): Path(a.path).read_bytes() for a in of_type(records, Artifact)}
    assert artifacts == {("model", None): b"weights", ("bytes", None): b"abc", ("files", 2): b"weights"}
    assert reading.left_out == {"preview points": 1}
    (started,) = of_type(records, RunStarted)
    assert started.provenance["imported_from"]["kind"] == KIND
    return reading


def test_an_offline_run_of_the_real_sdk_comes_back_value_for_value(closed: Path) -> None:
    """Metrics with NaN, infinities and fractional steps, configs, tags, text, histograms and files are all there."""
    check_everything(closed)
    run = only_run(KIND, closed)
    assert (run.project, run.experiment, run.name) == ("team/project", "exp", "run-1")
    assert status_of(list(run.records())) == "finished"


def test_a_killed_process_leaves_a_log_that_is_read_and_not_touched(killed: Path) -> None:
    """After SIGKILL the rows in `-wal` are read too, the run counts as crashed, and no file changes or appears."""
    (database,) = killed.rglob(FILE)
    assert database.with_name(FILE + "-wal").stat().st_size > 0

    def content() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in database.parent.iterdir() if not p.name.endswith("-shm")}

    before = content()
    check_everything(killed)
    assert status_of(records_of(KIND, killed)) == "crashed"
    assert content() == before


def test_a_log_without_its_index_or_in_a_read_only_folder_is_read_too(killed: Path, tmp_path: Path) -> None:
    """Copied off a cluster without the `-shm` file, the run is still whole, and the copy stays as it is."""
    work = tmp_path / "work"
    shutil.copytree(killed, work)
    (database,) = work.rglob(FILE)
    database.with_name(FILE + "-shm").unlink(missing_ok=True)
    names = sorted(p.name for p in database.parent.iterdir())
    database.parent.chmod(0o555)
    try:
        assert len(points_of(records_of(KIND, work))["m/3"]) == 300
    finally:
        database.parent.chmod(0o755)
    assert sorted(p.name for p in database.parent.iterdir()) == names


def test_several_databases_of_one_run_are_one_run(closed: Path, tmp_path: Path) -> None:
    """Each Run object of the SDK writes its own database; the same project and run id belong together, in order."""
    work = tmp_path / "work"
    shutil.copytree(closed, work)
    (folder,) = (path.parent for path in work.rglob(FILE))
    stem, _, started = folder.name.rpartition("_")
    later = folder.with_name(f"{stem}_{int(started) + 1}")
    shutil.copytree(folder, later)
    run = only_run(KIND, work)
    assert run.paths == (str(folder / FILE), str(later / FILE))
    records = list(run.records())
    assert len(of_type(records, RunStarted)) == 1
    assert len(points_of(records)["m/0"]) == 600
    assert run.run_id == only_run(KIND, closed).run_id


def test_files_elsewhere_are_left_where_they_are(closed: Path, tmp_path: Path) -> None:
    """A database can name any file of the reader's machine; only what lies below the given path is taken."""
    work = tmp_path / "work"
    shutil.copytree(closed, work)
    (database,) = work.rglob(FILE)
    secret = tmp_path / "id_rsa"
    secret.write_text("private")
    (work / "link").symlink_to(secret)
    db = sqlite3.connect(database)
    db.execute("UPDATE file_upload_requests SET source_path = ? WHERE id = 1", (str(secret),))
    db.execute("UPDATE file_upload_requests SET source_path = ? WHERE id = 2", (str(work / "link"),))
    db.execute("UPDATE file_upload_requests SET source_path = ? WHERE id = 3", (str(work / ".." / "id_rsa"),))
    db.commit()
    db.close()
    reading = Reading()
    assert not of_type(records_of(KIND, work, reading), Artifact)
    assert reading.left_out["files outside of the imported path"] == 3


def forge(path: Path, operations: list[tuple[int, object]], version: str = "v5") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path / FILE)
    db.executescript(
        "CREATE TABLE run_operations (sequence_id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp INTEGER NOT NULL,"
        " operation_type INTEGER NOT NULL, operation BLOB NOT NULL, operation_size_bytes INTEGER NOT NULL);"
        "CREATE TABLE metadata (id INTEGER PRIMARY KEY AUTOINCREMENT, version TEXT NOT NULL, project TEXT NOT NULL,"
        " run_id TEXT NOT NULL);"
    )
    db.execute("INSERT INTO metadata (version, project, run_id) VALUES (?, 'a/b', 'r')", (version,))
    db.executemany(
        "INSERT INTO run_operations (timestamp, operation_type, operation, operation_size_bytes) VALUES (1, ?, ?, 0)",
        operations,
    )
    db.commit()
    db.close()
    return path / FILE


def snapshot(step: float | None, values: dict[str, float], nanos: int = 5) -> bytes:
    message = UpdateRunSnapshot()
    if step is not None:
        message.step.whole, message.step.micro = int(step), round(step % 1 * 1e6)
    message.timestamp.seconds, message.timestamp.nanos = 1_700_000_000, nanos
    for name, value in values.items():
        message.append[name].float64 = value
    return message.SerializeToString()


names = st.text(st.characters(codec="utf-8"), max_size=300)
rows = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 10**12 - 1), st.integers(0, 10**6).map(lambda n: n / 4), st.none()),
        st.dictionaries(names, st.floats(), max_size=5),
        st.integers(0, 999_999_999),
    ),
    max_size=12,
)


@settings(max_examples=120, deadline=None)
@given(rows)
def test_both_roads_agree_with_protobuf(tmp_path_factory: pytest.TempPathFactory, wanted: list) -> None:  # type: ignore[type-arg]
    """Whatever metrics a database holds, in lockstep or one by one, we read what protobuf reads."""
    folder = tmp_path_factory.mktemp("any")
    messages = [snapshot(*row) for row in wanted]
    forge(folder, [(0, message) for message in messages])
    expected: dict[str, list[tuple[int | float, float]]] = {}
    for message in messages:
        parsed = UpdateRunSnapshot.FromString(message)
        for name, value in parsed.append.items():
            series = expected.setdefault(name, [])
            if parsed.HasField("step"):
                step = parsed.step.whole
                if parsed.step.micro:
                    step = (step * 10**6 + parsed.step.micro) / 10**6
            else:
                step = int(series[-1][0]) + 1 if series else 0
            series.append((step, value.float64))
    assert same(points_of(records_of(KIND, folder)), expected)
    shutil.rmtree(folder)


def test_no_flipped_bit_does_harm(closed: Path, tmp_path: Path) -> None:
    """A database with any bit flipped is read or refused with its path; nothing else comes out."""
    (database,) = closed.rglob(FILE)
    data = database.read_bytes()
    path = tmp_path / "run" / FILE
    path.parent.mkdir()
    refused = 0
    header = ((place, changed) for place, changed in flipped(data[:4096], 3, 120))
    for _, changed in header:
        path.write_bytes(changed + data[4096:])
        refused += bool(read_hostile(KIND, path)[1])
    for _, changed in flipped(data, 4, 60):
        path.write_bytes(changed)
        read_hostile(KIND, path)
    assert refused


@pytest.mark.parametrize("size", [0, 1, 50, 100, 4096, 5000, 20_000])
def test_a_cut_database_is_refused_by_name(closed: Path, tmp_path: Path, size: int) -> None:
    """A truncated file is an error that names it; salvaging gives what pages are left and no more."""
    (database,) = closed.rglob(FILE)
    path = tmp_path / "run" / FILE
    path.parent.mkdir()
    path.write_bytes(database.read_bytes()[:size])
    _, complaints = read_hostile(KIND, path)
    assert complaints


def test_operations_that_are_none_are_damage_and_the_rest_is_kept(tmp_path: Path) -> None:
    """Blobs of another kind, too large, of the wrong type or with pickles in them cost only themselves."""

    class Boom:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/executed",)

    good = snapshot(1, {"x": 1.0})
    bad: list[object] = [b"\xff" * 50, b"\x0b", good[:-3], b"", "text", 7, bytes(5 << 20), pickle.dumps(Boom())]
    bad.append(snapshot(1, {"x": 1.0}).replace(b"\x12\x08", b"\x12\x7f", 1))
    forge(
        tmp_path / "run",
        [(0, good), *((0, item) for item in bad), (1, b"\xff"), (9, b"x"), (0, snapshot(2, {"x": 2.0}))],
    )
    with pytest.raises(ForeignFormatError, match=rf"{FILE}.*operation 2"):
        records_of(KIND, tmp_path)
    damage: list[Damage] = []
    assert points_of(records_of(KIND, tmp_path, Reading(on_damage=damage.append))) == {"x": [(1, 1.0), (2, 2.0)]}
    assert len(damage) == len(bad) + 1
    assert not (tmp_path / "executed").exists()


def test_a_hostile_schema_runs_nothing(tmp_path: Path) -> None:
    """A view in place of the table, a generated column or another version is refused instead of evaluated."""
    forge(tmp_path / "version", [(0, snapshot(1, {"x": 1.0}))], version="v9")
    with pytest.raises(ForeignFormatError, match="v9"):
        records_of(KIND, tmp_path / "version")
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
    path = forge(tmp_path / "view", [])
    db = sqlite3.connect(path)
    db.executescript(
        "DROP TABLE run_operations; CREATE VIEW run_operations AS "
        f"{endless} SELECT n AS sequence_id, 1 AS timestamp, 0 AS operation_type, zeroblob(9) AS operation FROM c;"
    )
    db.close()
    with pytest.raises(ForeignFormatError, match=FILE):
        records_of(KIND, tmp_path / "view")
    path = forge(tmp_path / "generated", [])
    db = sqlite3.connect(path)
    db.executescript(
        "DROP TABLE run_operations; CREATE TABLE run_operations (sequence_id INTEGER PRIMARY KEY, timestamp INTEGER,"
        " operation_type INTEGER, operation BLOB AS (zeroblob(900000000)));"
        "INSERT INTO run_operations (timestamp, operation_type) VALUES (1, 0);"
    )
    db.close()
    with pytest.raises(ForeignFormatError, match=FILE):
        records_of(KIND, tmp_path / "generated")


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    """Something that is no SQLite database, or one of another program, is an error with its path."""
    path = tmp_path / "run" / FILE
    path.parent.mkdir()
    path.write_bytes(b"PAR1 is something else" * 100)
    with pytest.raises(ForeignFormatError, match="run_operations"):
        records_of(KIND, tmp_path)
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE other (x)").connection.close()
    with pytest.raises(ForeignFormatError, match="not a database of neptune-scale"):
        records_of(KIND, tmp_path)
    with pytest.raises(FileNotFoundError):
        list(discover(KIND, tmp_path / "nowhere"))
