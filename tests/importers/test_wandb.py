"""Offline runs of the real wandb, whole, killed, cut and corrupted, read without it."""

from __future__ import annotations

import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from wandb.proto import wandb_internal_pb2 as pb

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
from tracker_bridge.importers._wandb_log import payloads
from tracker_bridge.records import Artifact, Histogram, Metrics, RunStarted, Text, unpack_values

KIND = "wandb"

WRITER = """
import math, os, signal, sys
import numpy as np
import wandb

def main(folder, how):
    os.chdir(folder)
    run = wandb.init(
        mode="offline", project="proj", entity="team", group="exp", name="nice name", id="run1", tags=["a", "b"],
        config={"lr": 0.1, "opt": {"name": "adam", "betas": [0.9, 0.99]}, "none": None, "text": "\\u00e9",
                "url": "https://user:hunter22@example.org/repo"},
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, quiet=True),
    )
    run.define_metric("val/*", step_metric="val/epoch")
    run.define_metric("exact", step_metric="val/epoch")
    for step in range(3000 if how == "kill" else 200):
        run.log({f"m/{i}": step * 10.0 + i for i in range(3)})
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    run.log({"bad": math.nan, "nested": {"x": 1, "y": {"z": -math.inf}}, "flag": True, "word": "hi"})
    run.log({"bad": math.inf, "val/acc": 0.5, "exact": 3, "val/epoch": 7})
    run.log({"val/acc": 0.25, "val/epoch": 2})
    run.log({"h": wandb.Histogram(np_histogram=([1, 2, 3], [0.0, 1.0, 2.0, 4.0])), "none": None, "list": [1, 2]})
    run.log({"img": wandb.Image(np.zeros((4, 4, 3), dtype=np.uint8)),
             "imgs": [wandb.Image(np.full((4, 4, 3), i, dtype=np.uint8)) for i in range(2)]})
    run.config.update({"lr": 0.2, "later": 1}, allow_val_change=True)
    run.summary["best"] = 3
    run.tags = ("a", "c")
    run.notes = "some notes"
    with open("weights.txt", "w") as file:
        file.write("weights")
    run.save("weights.txt")
    artifact = wandb.Artifact("model", type="model")
    artifact.add_file("weights.txt")
    run.log_artifact(artifact)
    run.alert("title", "something")
    run.finish(exit_code=3 if how == "fail" else 0)

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
"""


def write(folder: Path, how: str) -> Path:
    work = folder / how
    work.mkdir()
    script = folder / "script.py"
    script.write_text(WRITER)
    env = {**os.environ, "WANDB_DIR": str(work), "WANDB_CACHE_DIR": str(folder), "WANDB_DATA_DIR": str(work)}
    command = [sys.executable, str(script), str(work), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    return work


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("wandb"), "finish")


def log_of(work: Path) -> Path:
    (path,) = work.rglob("*.wandb")
    return path


def test_an_offline_run_of_the_real_sdk_comes_back_value_for_value(written: Path) -> None:
    """Metrics with NaN and infinities, nested values, config, tags, text, histogram, media and files are all there."""
    reading = Reading()
    records = records_of(KIND, written, reading)
    run = only_run(KIND, written)
    assert (run.project, run.experiment, run.name) == ("team/proj", "exp", "nice name")
    points = points_of(records)
    for index in range(3):
        assert points.pop(f"m/{index}") == [(step, step * 10.0 + index) for step in range(200)]
    expected = {
        "bad": [(200, math.nan), (201, math.inf)],
        "nested.x": [(200, 1.0)],
        "nested.y.z": [(200, -math.inf)],
        "flag": [(200, 1.0)],
        "val/acc": [(7, 0.5), (2, 0.25)],
        "exact": [(7, 3.0)],
        "val/epoch": [(201, 7.0), (202, 2.0)],
    }
    assert same(points, expected)  # type: ignore[arg-type]
    assert params_of(records) == {
        "lr": 0.2,
        "opt": {"name": "adam", "betas": [0.9, 0.99]},
        "none": None,
        "text": "é",
        "url": "https://<secret>@example.org/repo",
        "later": 1,
        "summary": {"best": 3},
    }
    assert tags_of(records) == {"a": None, "c": None}
    texts = {(t.name, t.text, t.step) for t in of_type(records, Text)}
    assert {("word", "hi", 200), ("notes", "some notes", None), ("list", "[1, 2]", 203)} <= texts
    (histogram,) = of_type(records, Histogram)
    assert unpack_values(histogram.edges).tolist() == [0.0, 1.0, 2.0, 4.0]
    assert unpack_values(histogram.counts).tolist() == [1.0, 2.0, 3.0]
    artifacts = {(a.name, a.step): Path(a.path) for a in of_type(records, Artifact)}
    assert artifacts[("img", 204)].read_bytes().startswith(b"\x89PNG")
    assert {("imgs/0", 204), ("imgs/1", 204), ("weights.txt", None), ("requirements.txt", None)} <= set(artifacts)
    assert artifacts[("weights.txt", None)].read_text() == "weights"
    assert artifacts[("model/weights.txt", None)].read_text() == "weights"
    assert status_of(records) == "finished"
    (started,) = of_type(records, RunStarted)
    assert started.time_ns > 1_600_000_000_000_000_000
    times = [record.time_ns for record in of_type(records, Metrics)]
    assert times == sorted(times)
    assert reading.left_out == {"values that are null": 1}


def test_exit_code_and_kill_become_the_status(tmp_path: Path) -> None:
    """A non-zero exit is `failed`; a run whose process was killed is `crashed` and keeps all that reached the file."""
    assert status_of(records_of(KIND, write(tmp_path, "fail"))) == "failed"
    records = records_of(KIND, write(tmp_path, "kill"))
    assert status_of(records) == "crashed"
    values = points_of(records)["m/0"]
    assert values == [(step, step * 10.0) for step in range(len(values))]
    assert len(values) > 1000


def test_files_of_a_resumed_run_are_one_run_in_order(written: Path, tmp_path: Path) -> None:
    """Two directories with the same run id and project are one run, oldest first; ids do not depend on the place."""
    work = tmp_path / "work"
    shutil.copytree(written, work, symlinks=True)
    folder = log_of(work).parent
    shutil.copytree(folder, folder.with_name("offline-run-20990101_000000-run1"), symlinks=True)
    run = only_run(KIND, work)
    assert len(run.paths) == 2
    assert "20990101" in run.paths[1]
    assert run.run_id == only_run(KIND, written).run_id
    records = list(run.records())
    assert len(points_of(records)["m/0"]) == 400
    assert len(of_type(records, RunStarted)) == 1


def test_a_file_cut_anywhere_keeps_what_is_whole(written: Path, tmp_path: Path) -> None:
    """The torn tail of a killed writer is no error at any length that holds a record."""
    data = log_of(written).read_bytes()
    path = tmp_path / "run" / "run-x.wandb"
    path.parent.mkdir()
    before = 0
    for size in range(2000, len(data), len(data) // 60):
        path.write_bytes(data[:size])
        reading = Reading()
        count = sum(1 for _ in payloads(path, reading))
        assert count >= before
        assert sum(reading.left_out.values()) <= 1
        before = count
        records_of(KIND, tmp_path)
    for size in range(7):
        path.write_bytes(data[:size])
        with pytest.raises(ForeignFormatError, match=r"run-x.wandb"):
            records_of(KIND, tmp_path)
    path.write_bytes(data[:7])
    with pytest.raises(ForeignFormatError, match="holds no record"):
        records_of(KIND, tmp_path)


def test_no_flipped_bit_goes_unnoticed_or_does_harm(written: Path, tmp_path: Path) -> None:
    """Each flipped bit is an error that names the file or a torn tail; salvaging skips to the next block."""
    data = log_of(written).read_bytes()
    path = tmp_path / "run" / "run-x.wandb"
    path.parent.mkdir()
    path.write_bytes(data)
    whole, none = read_hostile(KIND, path)
    assert not none
    silent = 0
    for _, changed in flipped(data, seed=5, count=60):
        path.write_bytes(changed)
        count, complaints = read_hostile(KIND, path)
        silent += not complaints
        assert count <= whole + 1
    # Only the padding at the end of a block may change without notice.
    assert silent <= 1


def frame(record: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(b"\x01" + record), len(record), 1) + record


def forge(path: Path, records: list[pb.Record | bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = b"".join(frame(r if isinstance(r, bytes) else r.SerializeToString()) for r in records)
    assert len(body) < 32768 - 7
    path.write_bytes(b":W&B" + struct.pack("<HB", 0xBEE1, 0) + body)
    return path


def history(step: int, **values: str) -> pb.Record:
    items = [pb.HistoryItem(nested_key=[key], value_json=value) for key, value in values.items()]
    return pb.Record(history=pb.HistoryRecord(step=pb.HistoryStep(num=step), item=items))


def test_files_outside_of_the_run_are_never_taken(tmp_path: Path) -> None:
    """Absolute paths, `..` and links in media, saved files and artifacts do not lead out of the given path."""
    secret = tmp_path / "id_rsa"
    secret.write_text("private")
    path = tmp_path / "logs" / "offline-run-20260101_000000-r" / "run-r.wandb"
    (path.parent / "files").mkdir(parents=True)
    (path.parent / "files" / "link").symlink_to(secret)
    entry = pb.ArtifactManifestEntry(path="k", local_path=str(secret))
    media = '{"_type":"image-file","path":"%s"}'
    forge(
        path,
        [
            history(0, a=media % "../../../id_rsa", b=media % secret, c=media % "link"),
            pb.Record(
                files=pb.FilesRecord(files=[pb.FilesItem(path=p) for p in ("../../../id_rsa", str(secret), "link")])
            ),
            pb.Record(artifact=pb.ArtifactRecord(type="t", name="n", manifest=pb.ArtifactManifest(contents=[entry]))),
        ],
    )
    reading = Reading()
    assert not of_type(records_of(KIND, tmp_path / "logs", reading), Artifact)
    assert reading.left_out["files outside of the imported path"] == 4


def test_records_that_are_none_are_damage_and_the_rest_is_kept(tmp_path: Path) -> None:
    """Broken protobuf, broken or endlessly nested JSON and absurd numbers cost only their record."""
    bad: list[pb.Record | bytes] = [
        b"\xff" * 30,
        b"\x12\x7f",
        history(1, x="{not json"),
        history(1, x="[" * 20_000),
        history(1, x="1.2.3"),
    ]
    odd: list[pb.Record | bytes] = [
        history(2, _timestamp="1e300", _step="99999999999999999999", big="9" * 400, s='"\\ud800"'),
        history(3, h='{"_type":"histogram","bins":[1],"values":[1,2,3]}', o='{"_type":"x"}', k='{"\\ud800": "v"}'),
        pb.Record(config=pb.ConfigRecord(update=[pb.ConfigItem(key="n", value_json="9" * 50)])),
    ]
    path = forge(tmp_path / "run" / "run-r.wandb", [history(0, x="1"), *bad, *odd, history(4, x="2")])
    with pytest.raises(ForeignFormatError, match=r"run-r.wandb.*record 2"):
        records_of(KIND, tmp_path)
    damage: list[Damage] = []
    records = records_of(KIND, tmp_path, Reading(on_damage=damage.append))
    points = points_of(records)
    assert points["x"] == [(0, 1.0), (4, 2.0)]
    assert points["big"] == [(2, math.inf)]
    assert len(damage) == len(bad)
    assert read_hostile(KIND, path)[1]


def test_another_kind_of_file_is_refused_by_name(tmp_path: Path) -> None:
    """A file that is no W&B log is an error with its path."""
    path = tmp_path / "run" / "run-r.wandb"
    path.parent.mkdir()
    path.write_bytes(b"something else entirely" * 10)
    with pytest.raises(ForeignFormatError, match=r"run-r.wandb.*not a .wandb file"):
        records_of(KIND, tmp_path)
    with pytest.raises(FileNotFoundError):
        list(discover(KIND, tmp_path / "nowhere"))
