"""A disk that is full to the last byte when a run ends: how it ended, and what was lost, is kept all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests import scripts
from tracker_bridge.rundir import RunPaths, load_manifest, spare_for, update_manifest, write_json

FILL = """
def fill(folder):
    with open(os.path.join(folder, "filler"), "ab", buffering=0) as filler:
        for size in (65536, 4096, 1):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError:
                pass
"""

SCRIPT = (
    """
import json, os, sys
import tracker_bridge as bridge
"""
    + FILL
    + """
run = bridge.init(backends={"jsonl": {"path": "out.jsonl"}}, run_id="r", dir=sys.argv[1], params={"lr": 0.1})
run.log_metrics({"x": 0.0}, step=0)
run.flush(30)
fill(sys.argv[1])
for step in range(1, 6000):
    run.log_metrics({f"a name that takes room {n}": 1.0 for n in range(30)}, step=step)
fill(sys.argv[1])
assert os.statvfs(sys.argv[1]).f_bavail == 0
delivery = run.close(sys.argv[2], timeout=10)
print(json.dumps(dict(delivery.not_written)))
"""
)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 4 MiB of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    folder = Path(tempfile.mkdtemp())
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracker_bridge", *arguments]
    return subprocess.run(command, cwd=folder, env=scripts.environment(), capture_output=True, text=True)


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_the_end_of_a_run_and_what_was_not_written_survive_a_full_disk(
    tmp_path: Path, small_disk: Path, status: str
) -> None:
    """`status` shows how the run ended and how much never reached the disk; later `sync` tells the tracker so."""
    done = scripts.run(tmp_path, SCRIPT, str(small_disk), status, timeout=100)
    assert done.returncode == 0, done.stderr
    lost = json.loads(done.stdout)
    assert lost["disk_full"] > 100
    assert "run.json could not be written" not in done.stderr
    paths = RunPaths(small_disk / "r")
    manifest = load_manifest(paths)
    assert (manifest.status, manifest.not_written) == (status, lost)
    assert manifest.finished_ns
    (shown,) = json.loads(program(tmp_path, "status", "--dir", str(small_disk), "--json").stdout)["runs"]
    assert (shown["status"], shown["not_written"]) == (status, lost)
    text = program(tmp_path, "status", "r", "--dir", str(small_disk)).stdout
    assert f"never written to disk: {lost['disk_full']:,} disk_full" in text
    (small_disk / "filler").unlink()
    synced = program(tmp_path, "sync", "r", "--dir", str(small_disk))
    assert synced.returncode == 0, synced.stdout + synced.stderr
    assert scripts.statuses(tmp_path / "out.jsonl")[-1] == status


def test_a_file_is_replaced_by_its_spare_again_and_again(tmp_path: Path, small_disk: Path) -> None:
    """It holds blocks of its own; replacing by it leaves a whole file and a new spare; a run that ended has none."""
    text = "import sys, tracker_bridge as bridge\nbridge.init(backends='none', run_id='r', dir=sys.argv[1]).close()\n"
    assert scripts.run(tmp_path, text, str(small_disk)).returncode == 0
    paths = RunPaths(small_disk / "r")
    spare = spare_for(paths.manifest)
    assert not spare.exists(), "a run that has ended needs none"
    text = text.replace("run_id='r'", "run_id='r', resume=True").replace(".close()", "\nimport os; os._exit(0)")
    scripts.run(tmp_path, text, str(small_disk))
    assert spare.stat().st_blocks * 512 >= 16384
    exec(FILL, names := {"os": os})
    names["fill"](small_disk)
    with pytest.raises(OSError, match="No space"):
        write_json(small_disk / "other.json", {"a": "b" * 5000})
    assert not [entry.name for entry in small_disk.iterdir() if "other" in entry.name]
    update_manifest(paths, lambda old: msgspec.structs.replace(old, name="n" * 3000))
    assert load_manifest(paths).name == "n" * 3000
    assert spare.stat().st_blocks, "what the old file took has room for another one"
    update_manifest(paths, lambda old: msgspec.structs.replace(old, name="m" * 3000))
    assert load_manifest(paths).name == "m" * 3000
