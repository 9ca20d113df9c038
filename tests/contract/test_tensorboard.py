"""The TensorBoard adapter against TensorBoard: its Python reader, and the data API of a real `tensorboard` process."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tracker_bridge_tensorboard import TensorBoardAdapter, TensorBoardOptions

from tests.readback_tensorboard import accumulate, stored_run
from tests.servers import TensorBoardServer, run_tensorboard, tensorboard_server
from tests.waiting import until
from tracker_bridge.adapter import Batch, ParamsItem, Rejected, RetryLater, Row, RunInfo
from tracker_bridge.records import Metrics
from tracker_bridge.testing import AdapterTests, Point, StoredRun, Trial

__all__ = ["tensorboard_server"]


class TestWithThePythonReader(AdapterTests):
    """What `EventAccumulator` finds in the event files."""

    adapter_type = TensorBoardAdapter
    context = ("script", "arguments", "host", "user", "git_commit")

    def options(self) -> Mapping[str, Any]:
        return {"log_dir": str(self.place / "runs")}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        return stored_run(Path(ids["log_dir"]))


class TestOverHttp(TestWithThePythonReader):
    """What a real `tensorboard` shows: its default reader keeps less than the files hold."""

    @pytest.fixture(autouse=True)
    def _server(self, tensorboard_server: TensorBoardServer, tmp_path: Path) -> None:
        self.server = tensorboard_server
        self.folder = tensorboard_server.logdir / re.sub(r"\W", "_", str(tmp_path))

    def options(self) -> Mapping[str, Any]:
        return {"log_dir": str(self.folder)}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        """The files' content, but with the scalars and histograms that the server tells."""
        files = super().read_back(ids)
        run = str(Path(ids["log_dir"]).relative_to(self.server.logdir))
        tags = {tag for tag in files.metrics if len(files.metrics) <= 500}
        wanted = {(tag, point.step) for tag in tags for point in files.metrics[tag]}
        shown = until(lambda: self._scalars(run, tags, wanted), 30.0, f"tensorboard shows all points of {run}")
        histograms = {}
        for name in files.histograms:
            rows = self.server.data("plugin/histograms/histograms", run=run, tag=f"{name}/histogram")
            histograms[name] = [
                (step, [*(row[0] for row in buckets), buckets[-1][1]], [row[2] for row in buckets])
                for _, step, buckets in rows
            ]
        runs = sum(
            1 for name in self.server.data("runs") if name.startswith(run.rpartition("/")[0]) and "/late" not in name
        )
        metrics = shown if tags else files.metrics
        return dataclasses.replace(
            files, metrics=metrics, histograms=histograms, runs=runs if len(tags) else files.runs
        )

    def _scalars(self, run: str, tags: set[str], wanted: set[tuple[str, float]]) -> dict[str, list[Point]] | None:
        metrics: dict[str, list[Point]] = {tag: [] for tag in tags}
        for lane, known in self.server.data("plugin/scalars/tags").items():
            if lane == run or lane.startswith(f"{run}/late"):
                for tag in tags & known.keys():
                    for time, step, value in self.server.data("plugin/scalars/scalars", run=lane, tag=tag):
                        metrics[tag].append(Point(step, float(value), time))
        if not {(tag, point.step) for tag, points in metrics.items() for point in points} >= wanted:
            return None
        return {tag: sorted(points) for tag, points in metrics.items()} or {"": []}


def run_info(folder: Path, **changes: Any) -> RunInfo:
    known: dict[str, Any] = {
        "run_id": "run-1",
        "backend": "tensorboard",
        "project": None,
        "experiment": None,
        "name": None,
        "dir": folder,
        "private_dir": folder,
        "started_ns": 1_750_000_000_000_000_000,
    }
    return RunInfo(**{**known, **changes})


def opened(folder: Path, **changes: Any) -> tuple[TensorBoardAdapter, Path]:
    adapter = TensorBoardAdapter(TensorBoardOptions(log_dir=str(folder / "runs")))
    return adapter, Path(adapter.open(run_info(folder, **changes)).ids["log_dir"])


def row(step: int, value: float, sequence: int | None = None, late: bool = False, tag: str = "loss") -> Row:
    number = step if sequence is None else sequence
    return Row(number, 1_750_000_000_000_000_000 + number, step, (tag,), np.array([value]), late)


def series_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith("1.series"))


def shown(server: TensorBoardServer, directory: Path, tag: str = "loss") -> list[tuple[int, float]]:
    run = str(directory.relative_to(server.logdir))
    if tag not in server.data("plugin/scalars/tags").get(run, {}):
        return []
    return [(step, float(value)) for _, step, value in server.data("plugin/scalars/scalars", run=run, tag=tag)]


def test_all_values_of_a_step_are_one_event(tmp_path: Path) -> None:
    """The bulk path: 1,000 series at a step are one record of the file."""
    adapter, directory = opened(tmp_path)
    names = tuple(f"s/{number}" for number in range(1_000))
    adapter.write(Batch(tuple(Row(step, step, step, names, np.arange(1_000.0)) for step in range(3))))
    adapter.close("finished")
    (path,) = series_files(directory)
    assert len(list(RawEventFileLoader(str(path)).Load())) == 1 + 3
    accumulator = accumulate(directory)
    assert [event.value for event in accumulator.Scalars("s/999")] == [999.0] * 3


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """Writing event files takes neither torch nor TensorFlow."""
    code = (
        "import sys, numpy, pathlib; from tracker_bridge.adapter import *; from tracker_bridge_tensorboard import *\n"
        "here = pathlib.Path.cwd(); adapter = TensorBoardAdapter(TensorBoardOptions())\n"
        "adapter.open(RunInfo('r', 'tensorboard', None, None, None, here, here))\n"
        "adapter.write(Batch((Row(0, 0, 0, ('a',), numpy.ones(1)),))); adapter.close('finished')\n"
        "found = {'torch', 'tensorflow', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_hparams_page_has_typed_params_and_the_status(tmp_path: Path) -> None:
    """The HPARAMS tab of a real server lists the run with its params, its metrics and how it ended."""
    adapter, _ = opened(tmp_path / "a", name="good")
    adapter.write(
        Batch((ParamsItem(0, 0, {"lr": 0.1, "amp": True, "opt": {"name": "adam", "eps": None}}), row(0, math.nan, 1)))
    )
    adapter.close("finished")
    other, _ = opened(tmp_path / "a", run_id="run-2", name="bad")
    other.write(Batch((ParamsItem(0, 0, {"lr": "auto", "only": 1}), row(0, 2.0, 1))))
    other.close("killed")
    with run_tensorboard(tmp_path / "a" / "runs", tmp_path / "log") as server:
        asked = {"startIndex": 0, "sliceSize": 9, "colParams": [], "allowedStatuses": [f"STATUS_{s}" for s in STATUSES]}

        def groups() -> Any:
            found = server.post("plugin/hparams/session_groups", asked).get("sessionGroups", [])
            return found if len(found) == 2 else None

        sessions = {group["name"]: group for group in until(groups, 30.0)}
    good, bad = sessions["good-run-1"], sessions["bad-run-2"]
    assert good["hparams"] == {"lr": 0.1, "amp": True, "opt/name": "adam", "opt/eps": "None"}
    assert bad["hparams"] == {"lr": "auto", "only": 1}
    assert [group["sessions"][0]["status"] for group in (good, bad)] == ["STATUS_SUCCESS", "STATUS_FAILURE"]


STATUSES = ("UNKNOWN", "SUCCESS", "FAILURE", "RUNNING")


@pytest.mark.parametrize("fast", [True, False], ids=["rustboard", "python"])
def test_late_and_resumed_points_hide_nothing_in_a_running_server(tmp_path: Path, fast: bool) -> None:
    """A server that reads while the run goes on, stops, is torn by a crash and goes on shows every point."""
    adapter, directory = opened(tmp_path)
    adapter.write(Batch(tuple(row(step, float(step)) for step in range(5))))
    adapter.flush()
    with run_tensorboard(tmp_path / "runs", tmp_path / "log", fast=fast) as server:
        until(lambda: len(shown(server, directory)) == 5, 30.0)
        adapter.write(Batch((row(2, -2.0, 5, late=True), row(1, -1.0, 6, late=True), row(5, 5.0, 7))))
        adapter.flush()
        adapter.write(Batch((row(0, -0.5, 8, late=True), row(6, 6.0, 9))))
        adapter.flush()
        until(lambda: len(shown(server, directory)) == 7, 30.0)
        with series_files(directory)[0].open("ab") as file:
            file.write(b"\x40\0\0\0\0\0\0\0 half a record")
        again, same = opened(tmp_path, ids={"log_dir": str(directory)}, attempt=2)
        again.write(Batch((row(6, 6.0, 9), row(7, 7.0, 10))))
        again.close("finished")
        assert same == directory
        until(lambda: len(shown(server, directory)) == 8, 30.0)
        assert shown(server, directory) == [(step, float(step)) for step in range(8)]
        late = [shown(server, directory / name) for name in ("late", "late-2")]
        assert late == [[(1, -1.0), (2, -2.0)], [(0, -0.5)]]
    assert [event.step for event in accumulate(directory).Scalars("loss")] == list(range(8))


def test_too_many_late_sequences_are_refused_not_hidden(tmp_path: Path) -> None:
    """Points that only ever go back need a sub-run each; beyond the limit they are refused with a reason."""
    adapter, directory = opened(tmp_path)
    adapter.write(Batch((row(1_000, 1.0, 0),)))
    for number in range(64):
        adapter.write(Batch((row(900 - number, 1.0, 1 + number, late=True),)))
    with pytest.raises(Rejected, match="sub-runs"):
        adapter.write(Batch((row(100, 1.0, 70, late=True), row(1_001, 2.0, 71))))
    adapter.close("finished")
    assert [event.step for event in accumulate(directory).Scalars("loss")] == [1_000, 1_001]
    assert len(list(directory.glob("late*"))) == 64


def test_killed_delivery_stores_every_point_once(tmp_path: Path) -> None:
    """SIGKILL of the delivering process at any moment, again and again, then one delivery: each point is there once."""
    trial = Trial(tmp_path / "queue", lambda: TensorBoardAdapter(TensorBoardOptions(log_dir=str(tmp_path / "runs"))))
    names = tuple(f"s/{number}" for number in range(20))
    steps = 10_000
    trial.append(*(Metrics(step, step, dict.fromkeys(names, float(step))) for step in range(steps)))
    code = (
        "import dataclasses, pathlib, sys; from tracker_bridge.delivery import deliver_once\n"
        "from tracker_bridge_tensorboard import *\n"
        "small = dataclasses.replace(TensorBoardAdapter.capabilities, max_points=1000)\n"
        "TensorBoardAdapter.capabilities = small\n"
        "print('ready', flush=True)\n"
        "deliver_once(pathlib.Path(sys.argv[1]), backend='backend', close=False,"
        " adapter=TensorBoardAdapter(TensorBoardOptions(log_dir=sys.argv[2])))"
    )

    def size() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "runs").rglob("*.series"))

    def written_or_ended(process: subprocess.Popen[bytes], enough: float) -> bool:
        return size() >= enough or process.poll() is not None

    generator = np.random.default_rng(0)
    for _ in range(8):
        command = [sys.executable, "-c", code, str(trial.paths.root), str(tmp_path / "runs")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        process.stdout.readline()
        enough = size() + float(generator.uniform(1_000, 400_000))
        until(partial(written_or_ended, process, enough), 30.0)
        process.kill()
        process.wait()
        process.stdout.close()
    trial.deliver()
    directory = Path(trial.ids["log_dir"])
    accumulator = accumulate(directory)
    for name in (names[0], names[-1]):
        assert [(event.step, event.value) for event in accumulator.Scalars(name)] == [
            (s, float(s)) for s in range(steps)
        ]
    assert not list(directory.glob("late*"))


def test_interruptions_in_a_row_store_nothing_twice(tmp_path: Path) -> None:
    """What one interrupted delivery wrote is still known after a second one that came no further than opening."""
    first, directory = opened(tmp_path)
    first.write(Batch(tuple(row(step, float(step)) for step in range(10))))
    first.flush()
    first.write(Batch(tuple(row(step, float(step)) for step in range(10, 20))))
    for _ in range(2):
        opened(tmp_path)
    second, _ = opened(tmp_path)
    second.write(Batch(tuple(row(step, float(step)) for step in range(9, 15))))
    second.flush()
    third, _ = opened(tmp_path)
    third.write(Batch(tuple(row(step, float(step)) for step in range(9, 25))))
    third.close("finished")
    assert [event.step for event in accumulate(directory).Scalars("loss")] == list(range(25))


def test_full_disk_leaves_whole_files_and_delivery_goes_on(tmp_path: Path) -> None:
    """Where the file may not grow nothing is torn; when it may again, every point is stored once."""
    code = (
        "import resource, sys, numpy, pathlib; from tracker_bridge.adapter import *\n"
        "from tracker_bridge_tensorboard import *\n"
        "here = pathlib.Path.cwd(); adapter = TensorBoardAdapter(TensorBoardOptions())\n"
        "adapter.open(RunInfo('r', 'tensorboard', None, None, None, here, here))\n"
        "def batch(start):\n"
        "    return Batch(tuple(Row(n, n, n, ('loss',), numpy.ones(1) * n) for n in range(start, start + 100)))\n"
        "adapter.write(batch(0)); adapter.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))\n"
        "try: adapter.write(batch(100)); sys.exit('wrote beyond the limit')\n"
        "except RetryLater as later: print(later.reason)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "adapter.write(batch(100)); adapter.close('finished')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    (directory,) = (tmp_path / "runs").iterdir()
    assert [event.step for event in accumulate(directory).Scalars("loss")] == list(range(200))


def test_two_backends_on_one_folder_do_not_share_a_directory(tmp_path: Path) -> None:
    """Two writers in one directory would hide each other's points."""
    _, first = opened(tmp_path)
    _, second = opened(tmp_path, backend="other")
    _, first_again = opened(tmp_path)
    assert first != second
    assert first_again == first


def test_backends_that_open_at_once_do_not_share_a_directory(tmp_path: Path) -> None:
    """Couriers open on threads of one process, each finds a folder of its own (half of the rounds had a shared one)."""
    backends = [f"blocks-{number}" for number in range(4)]
    for attempt in range(25):
        place = tmp_path / str(attempt)
        together = threading.Barrier(len(backends))

        def open_one(backend: str, place: Path = place, together: threading.Barrier = together) -> Path:
            together.wait(20)
            adapter, directory = opened(place, backend=backend)
            adapter.write(Batch((row(0, 1.0),)))
            adapter.close("finished")
            return directory

        with ThreadPoolExecutor(len(backends)) as threads:
            found = list(threads.map(open_one, backends))
        assert len(set(found)) == len(backends)
        assert sorted(found) == sorted((place / "runs").iterdir())
        assert [opened(place, backend=backend)[1] for backend in backends] == found
        for directory in found:
            assert [event.step for event in accumulate(directory).Scalars("loss")] == [0]


def test_processes_that_open_at_once_do_not_share_a_directory(tmp_path: Path) -> None:
    """A replay may run beside the run's own delivery, in another process (its folder was shared now and then)."""
    code = (
        "import pathlib, sys; from tracker_bridge.adapter import *; from tracker_bridge_tensorboard import *\n"
        "import tracker_bridge_tensorboard._run\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "for line in sys.stdin:\n"
        "    run = RunInfo(line.strip(), sys.argv[2], None, None, None, here, here)\n"
        "    print(TensorBoardAdapter(TensorBoardOptions(log_dir=str(here))).open(run).ids['log_dir'], flush=True)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), f"backend-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    shared = []
    for attempt in range(60):
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"run-{attempt}\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in processes if process.stdout is not None]
        assert all(answers)
        shared += [attempt] if len(set(answers)) < len(processes) else []
    for process in processes:
        process.communicate(timeout=30)
    assert not shared


def test_new_journal_with_the_same_run_id_loses_nothing(tmp_path: Path) -> None:
    """A job that was queued again with its run id and an empty queue counts its records from zero."""
    adapter, directory = opened(tmp_path)
    adapter.write(Batch(tuple(row(step, float(step)) for step in range(10))))
    adapter.close(None)
    again, same = opened(tmp_path, started_ns=1_760_000_000_000_000_000)
    again.write(Batch((row(10, 10.0, 0), row(11, 11.0, 1), row(4, 44.0, 2))))
    again.close("finished")
    assert same == directory
    assert [event.step for event in accumulate(directory).Scalars("loss")] == list(range(12))
    assert [(event.step, event.value) for event in accumulate(directory / "late").Scalars("loss")] == [(4, 44.0)]


def test_removed_directory_is_made_again(tmp_path: Path) -> None:
    """Somebody who deletes the run's folder gets the points that follow."""
    adapter, directory = opened(tmp_path)
    adapter.write(Batch((row(0, 0.0),)))
    adapter.flush()
    shutil.rmtree(directory)
    adapter.write(Batch((row(1, 1.0),)))
    adapter.close("finished")
    assert [event.step for event in accumulate(directory).Scalars("loss")] == [1]


def test_object_stores_are_refused(tmp_path: Path) -> None:
    """A URL is no place for event files, and the error says what to do."""
    with pytest.raises(ValueError, match="local directory"):
        TensorBoardOptions(log_dir="s3://bucket/runs")


def test_unwritable_place_is_tried_again(tmp_path: Path) -> None:
    """A place that cannot be written now is no reason to lose anything."""
    (tmp_path / "runs").write_text("a file, not a directory")
    with pytest.raises(RetryLater, match="runs"):
        opened(tmp_path)
