"""Reading a foreign run takes memory for what is at hand, not for how much there is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.importers.test_neptune_db import forge, snapshot
from tests.importers.test_tensorboard import VERSION, framed, scalar, write_events

SLACK = 12 << 20
"""Bytes: what an allocator may keep; a reader that holds its input as records would need ten times more."""

READ = """
import sys
from tracker_bridge.importers import discover
(run,) = discover(sys.argv[1], sys.argv[2])
for record in run.records():
    pass
"""

SORT = """
import sys
import numpy as np
from tracker_bridge.importers import _sorter
_sorter._PIECE, _sorter._MERGED = 1 << 16, 1 << 14
count = int(sys.argv[1])
with _sorter.PointSorter() as sorter:
    name = sorter.name_id("x")
    for block in range(count):
        times = np.arange(1 << 14, dtype=np.int64) * count + block
        sorter.add(times, times, 0, name, times.astype(np.float64))
    assert sum(len(row.values) for row in sorter.rows()) == count << 14
"""

# Not ru_maxrss, which begins with the size of the process that started this one.
REPORT = """
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


def tensorboard(folder: Path, size: int) -> None:
    path = write_events(folder, [VERSION])
    with path.open("ab") as file:
        file.write(framed(scalar("loss", 5, 1.0).SerializeToString()) * (size * 130_000))


def neptune(folder: Path, size: int) -> None:
    forge(folder, [(0, snapshot(5, {f"m{i}": 1.0 for i in range(10)}))] * (size * 12_000))


def lines(folder: Path, size: int) -> None:
    (folder / "run.jsonl").write_text('{"step": 1, "loss": 2.5, "time_ns": 7}\n' * (size * 20_000))


def table(folder: Path, size: int) -> None:
    (folder / "run.csv").write_text("step,loss\n" + "1,2.5\n" * (size * 20_000))


def peak(code: str, *arguments: str) -> int:
    """Bytes that a process running `code` had in memory at most."""
    command = [sys.executable, "-c", code + REPORT, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout)


@pytest.mark.parametrize(
    ("kind", "write"), [("tensorboard", tensorboard), ("neptune-db", neptune), ("jsonl", lines), ("csv", table)]
)
def test_memory_does_not_follow_the_size_of_the_input(
    tmp_path: Path, kind: str, write: Callable[[Path, int], None]
) -> None:
    """Six times as large a file takes no more memory to read."""
    peaks = []
    for size in (1, 6):
        folder = tmp_path / str(size)
        folder.mkdir()
        write(folder, size)
        peaks.append(peak(READ, kind, str(folder)))
    assert peaks[1] < peaks[0] + SLACK, peaks


def test_sorting_does_not_hold_what_it_sorts() -> None:
    """Points in any order are put into the order of time with pieces on disk, not in memory."""
    small, large = peak(SORT, "8"), peak(SORT, "48")
    assert large < small + SLACK, (small, large)
