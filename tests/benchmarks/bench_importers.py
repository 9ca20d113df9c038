"""How fast foreign runs are read, against the foreign readers, interleaved in one process; and how memory grows.

Run as a script: `python tests/benchmarks/bench_importers.py [tensorboard|neptune|memory|small] [--steps N]`. It prints
figures and judges none of them.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tracker_bridge.importers import discover, import_tree
from tracker_bridge.records import Metrics

TAGS = [f"gradients/encoder.layer.{i // 10}.block.{i % 10}.weight" for i in range(1000)]


def points(kind: str, path: Path) -> int:
    return sum(
        len(record.values) for run in discover(kind, path) for record in run.records() if isinstance(record, Metrics)
    )


def timed(read: Callable[[], int]) -> tuple[float, int]:
    start = time.perf_counter()
    count = read()
    return time.perf_counter() - start, count


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def write_wide(path: Path, steps: int) -> None:
    """One event a step that holds all tags: the bytes of TensorBoard's protobufs, with the values put in by numpy."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    rng = np.random.default_rng(0)
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=1.0) for tag in TAGS]).SerializeToString()
    mark = b"\x15" + struct.pack("<f", 1.0)
    ends = np.cumsum([len(part) + 5 for part in summary.split(mark)[:-1]])
    places = (ends[:, None] - 4 + np.arange(4)).reshape(-1)
    body = np.frombuffer(summary, dtype=np.uint8).copy()
    path.mkdir()
    with (path / "events.out.tfevents.1700000000.host.1.0").open("wb") as file:
        file.write(framed(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString()))
        for step in range(steps):
            body[places] = rng.random(len(TAGS), dtype=np.float32).view(np.uint8)
            event = Event(wall_time=1.7e9 + step, step=step)
            event.summary.ParseFromString(body.tobytes())
            file.write(framed(event.SerializeToString()))


def write_narrow(path: Path, steps: int) -> None:
    """One event a scalar, as `SummaryWriter.add_scalar` writes it; framed here, as the writer needs minutes."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    path.mkdir()
    value = np.random.default_rng(0).random(steps)
    with (path / "events.out.tfevents.1700000000.host.1.0").open("wb") as file:
        for step in range(steps):
            for tag in TAGS:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value[step])])
                data = Event(wall_time=1.7e9 + step, step=step, summary=summary).SerializeToString()
                file.write(framed(data))


def framed(data: bytes) -> bytes:
    import google_crc32c

    def masked(part: bytes) -> bytes:
        crc = google_crc32c.value(part)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    size = struct.pack("<Q", len(data))
    return size + masked(size) + data + masked(data)


def event_accumulator(path: Path) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    return sum(len(accumulator.Scalars(tag)) for tag in accumulator.Tags()["scalars"])


def rustboard(path: Path) -> int:
    """Time until TensorBoard's Rust data server has read everything (points are down-sampled in memory by it)."""
    import grpc
    import tensorboard_data_server
    from tensorboard.data.proto import data_provider_pb2, data_provider_pb2_grpc

    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        server = subprocess.Popen(
            [
                tensorboard_data_server.server_binary(),
                f"--logdir={path.parent}",
                "--reload=once",
                "--port=0",
                f"--port-file={port_file}",
                "--die-after-stdin",
                "--samples-per-plugin=scalars=all",
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (port_file.exists() and port_file.read_text().strip()):
                time.sleep(0.002)
            channel = grpc.insecure_channel(f"localhost:{port_file.read_text().strip()}")
            stub = data_provider_pb2_grpc.TensorBoardDataProviderStub(channel)
            request = data_provider_pb2.ListScalarsRequest(plugin_filter={"plugin_name": "scalars"})
            last, since = -1, time.perf_counter()
            while True:
                answer = stub.ListScalars(request)
                total = sum(t.metadata.max_step for run in answer.runs for t in run.tags)
                if total != last:
                    last, since = total, time.perf_counter()
                elif last > 0 and time.perf_counter() - since > 1.0:
                    return last
                time.sleep(0.01)
        finally:
            server.kill()
            server.wait()


def bench_tensorboard(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for shape, write, count in (("wide", write_wide, steps), ("narrow", write_narrow, max(1, steps // 10))):
            path = Path(folder, shape, "run")
            path.parent.mkdir()
            write(path, count)
            size = sum(file.stat().st_size for file in path.iterdir())
            ours, n = timed(lambda path=path: points("tensorboard", path))
            theirs, m = timed(lambda path=path: event_accumulator(path))
            again, _ = timed(lambda path=path: points("tensorboard", path))
            assert n == m, (n, m)
            rust, _ = timed(lambda path=path: rustboard(path))
            best = min(ours, again)
            print(
                f"tensorboard {shape}: {n:,} points, {size / 1e6:.0f} MB: ours {ours:.2f}/{again:.2f} s "
                f"({n / best / 1e6:.2f} M points/s), EventAccumulator {theirs:.1f} s = {theirs / best:.1f}x, "
                f"rustboard {rust - 1.0:.2f} s = {(rust - 1.0) / best:.2f}x",
                flush=True,
            )


# --- Neptune ----------------------------------------------------------------------------------------------------------

SCHEMA = """
CREATE TABLE run_operations (sequence_id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp INTEGER NOT NULL,
 operation_type INTEGER NOT NULL, operation BLOB NOT NULL, operation_size_bytes INTEGER NOT NULL);
CREATE TABLE metadata (id INTEGER PRIMARY KEY AUTOINCREMENT, version TEXT NOT NULL, project TEXT NOT NULL,
 run_id TEXT NOT NULL);
CREATE TABLE file_upload_requests (id INTEGER PRIMARY KEY AUTOINCREMENT, source_path TEXT NOT NULL,
 destination TEXT NOT NULL, mime_type TEXT NOT NULL, size_bytes INTEGER NOT NULL, is_temporary INTEGER NOT NULL);
INSERT INTO metadata (version, project, run_id) VALUES ('v5', 'workspace/project', 'run');
"""


def write_neptune(path: Path, steps: int, metrics: int) -> None:
    """A database with `metrics` values a step, in the SDK's schema and messages."""
    from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import UpdateRunSnapshot

    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    rows = []
    message = UpdateRunSnapshot()
    for step in range(steps):
        message.Clear()
        message.step.whole = step
        message.timestamp.seconds = 1_700_000_000 + step
        message.timestamp.nanos = 123_456_789
        for tag in TAGS[:metrics]:
            message.append[tag].float64 = step + 0.5
        data = message.SerializeToString()
        rows.append((1_700_000_000_000 + step, data, len(data)))
    db.executemany(
        "INSERT INTO run_operations (timestamp, operation_type, operation, operation_size_bytes) VALUES (?, 0, ?, ?)",
        rows,
    )
    db.commit()
    db.close()


def bench_neptune(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for metrics, count in ((1, steps * 20), (10, steps * 5), (300, steps // 5)):
            path = Path(folder, str(metrics), "run_operations.sqlite3")
            write_neptune(path, count, metrics)
            walls, cores = [], []
            for _ in range(3):
                cpu = time.process_time()
                wall, n = timed(lambda path=path: points("neptune-db", path))
                walls.append(wall)
                cores.append(time.process_time() - cpu)
            print(
                f"neptune-db, {metrics} metrics a call: {n:,} points in {min(walls):.2f} s = "
                f"{n / min(walls):,.0f} points/s; {n / min(cores):,.0f} points per second of one core",
                flush=True,
            )


# --- memory -----------------------------------------------------------------------------------------------------------

PEAK = """
import sys
from tracker_bridge.importers import discover
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
base = peak()
for run in discover(sys.argv[1], sys.argv[2]):
    for record in run.records():
        pass
print(base, peak())
"""


def peak(kind: str, path: Path) -> float:
    out = subprocess.run(
        [sys.executable, "-c", PEAK, kind, str(path)], check=True, capture_output=True, text=True
    ).stdout
    base, high = map(int, out.split())
    return (high - base) / 1024


def bench_memory(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for count in (steps // 10, steps):
            path = Path(folder, f"tb{count}")
            write_wide(path, count)
            size = sum(file.stat().st_size for file in path.iterdir())
            print(f"tensorboard {size / 1e6:.0f} MB: peak grows by {peak('tensorboard', path):.0f} MiB", flush=True)
        for count in (steps * 2, steps * 20):
            path = Path(folder, f"np{count}", "run_operations.sqlite3")
            write_neptune(path, count, 10)
            print(f"neptune-db {path.stat().st_size / 1e6:.0f} MB: peak grows by {peak('neptune-db', path):.0f} MiB")


# --- many small runs --------------------------------------------------------------------------------------------------


def bench_small(steps: int) -> None:
    """1,000 runs of 20 points in five parts, beside what the disk alone needs for as many folders and files, kept safe.

    The parts are measured in turns, for a shared disk is up to ten times slower from one second to the next.
    """
    runs, parts = max(10, steps // 10), 5
    ways = ("bare files", "1 worker", "2 workers", "4 workers")
    walls: dict[str, list[float]] = {way: [] for way in ways}
    cores: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(runs):
            write_small(Path(folder, "tree", str(index % parts), f"run{index}"), index)
        for part in range(parts):
            for way in ways:
                start, cpu = time.perf_counter(), time.process_time()
                if way == "bare files":
                    for index in range(runs // parts):
                        made = Path(folder, "plain", str(part), str(index))
                        (made / "journal").mkdir(parents=True)
                        for name in ("run.json", "journal/1", "lock"):
                            with (made / name).open("wb") as file:
                                file.write(bytes(4096))
                                file.flush()
                                os.fsync(file.fileno())
                else:
                    queue = Path(folder, f"q{way[0]}")
                    report = import_tree("tensorboard", Path(folder, "tree", str(part)), queue, workers=int(way[0]))
                    assert len(report.imported) == runs // parts, report.failed[:1]
                walls[way].append((time.perf_counter() - start) / (runs // parts))
                if way == "1 worker":
                    cores.append((time.process_time() - cpu) / (runs // parts))
        for way in ways:
            ratios = sorted(wall / bare for wall, bare in zip(walls[way], walls["bare files"], strict=True))
            middle = statistics.median(walls[way])
            print(
                f"{runs} small runs, {way}: {middle * 1e3:.2f} ms a run = {1 / middle:.0f} runs/s, "
                f"{statistics.median(ratios):.1f}x the bare files ({ratios[0]:.1f} to {ratios[-1]:.1f})"
            )
        print(f"1 worker: {statistics.median(cores) * 1e3:.2f} ms of a core a run, system calls included")
        start = time.perf_counter()
        report = import_tree("tensorboard", Path(folder, "tree"), Path(folder, "q1"), workers=1)
        print(f"again, all skipped ({len(report.skipped)}): {time.perf_counter() - start:.2f} s")


def write_small(path: Path, index: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    path.mkdir(parents=True)
    with (path / f"events.out.tfevents.{1700000000 + index}.host.1.0").open("wb") as file:
        for step in range(20):
            summary = Summary(value=[Summary.Value(tag="loss", simple_value=step)])
            file.write(framed(Event(wall_time=1.7e9 + step, step=step, summary=summary).SerializeToString()))


BENCHES = {
    "tensorboard": bench_tensorboard,
    "neptune": bench_neptune,
    "memory": bench_memory,
    "small": bench_small,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", nargs="*", choices=[*BENCHES, []], default=list(BENCHES))
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    for name in arguments.bench:
        BENCHES[name](arguments.steps)


if __name__ == "__main__":
    main()
