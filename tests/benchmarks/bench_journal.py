"""What one append costs the training thread, beside JSON lines and SQLite, and how fast the journal takes points.

    python tests/benchmarks/bench_journal.py [--records 20000] [--seconds 10] [--dir DIR]

The writers take turns record by record, so that a noisy machine is noisy for all. Times are of the whole call:
encoding, checksum and store. `busy` runs the same beside a Python thread that never waits.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tracker_bridge.journal import JournalReader, JournalWriter
from tracker_bridge.records import AnyRecord, Metrics, NormVector, encode, pack_values

Call = Callable[[int], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=10, help="of appends at 1,000 a second")
    parser.add_argument("--dir", type=Path, default=None, help="a folder on the disk to measure (default: temporary)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        gc.disable()
        for busy in (False, True):
            with _Busy(busy):
                print(f"\n{'beside a busy Python thread' if busy else 'alone'}, us per call")
                for title, calls in (("5 scalars", _scalars(folder)), ("1,000 norms", _norms(folder))):
                    _compare(title, calls, arguments.records // (5 if busy else 1))
        _tails(folder, arguments.seconds)
        _throughput(folder)
    finally:
        shutil.rmtree(folder)


def _new(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def _scalars(folder: Path) -> dict[str, Call]:
    values = {f"metric_{i}": 0.1 * i for i in range(5)}
    writer = JournalWriter.create(_new(folder) / "j", "bench", max_disk=256 << 20)
    payload = encode(Metrics(time.time_ns(), 1, values))
    lines = (_new(folder) / "x.jsonl").open("wb", buffering=0)
    database = _database(folder)
    return {
        "journal, append(record)": lambda step: writer.append(Metrics(time.time_ns(), step, values)),
        "journal, append_encoded": lambda step: writer.append_encoded(payload),
        "json lines, write()": lambda step: lines.write(json.dumps({"step": step, **values}).encode() + b"\n"),
        "sqlite (WAL, sync off)": lambda step: database(step, json.dumps(values)),
    }


def _norms(folder: Path) -> dict[str, Call]:
    array = np.random.default_rng(0).random(1000)
    names = [f"gradients/layer.{i}.weight" for i in range(1000)]
    writer = JournalWriter.create(_new(folder) / "j", "bench", max_disk=256 << 20)
    packed = pack_values(array)
    payload = encode(NormVector(time.time_ns(), 1, 0, packed))
    lines = (_new(folder) / "x.jsonl").open("wb", buffering=0)
    database = _database(folder)
    return {
        "journal, append(record)": lambda step: writer.append(NormVector(time.time_ns(), step, 0, packed)),
        "journal, append_encoded": lambda step: writer.append_encoded(payload),
        "json lines, write()": lambda step: lines.write(
            json.dumps(dict(zip(names, array.tolist(), strict=True))).encode() + b"\n"
        ),
        "sqlite (WAL, sync off)": lambda step: database(step, packed),
    }


def _database(folder: Path) -> Callable[[int, str | bytes], None]:
    connection = sqlite3.connect(_new(folder) / "x.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE points (step INTEGER, value)")

    def insert(step: int, value: str | bytes) -> None:
        connection.execute("INSERT INTO points VALUES (?, ?)", (step, value))

    return insert


def _compare(title: str, calls: dict[str, Call], records: int) -> None:
    times: dict[str, list[int]] = {name: [] for name in calls}
    order = list(calls)
    for step in range(records):
        random.shuffle(order)
        for name in order:
            call = calls[name]
            start = time.perf_counter_ns()
            call(step)
            times[name].append(time.perf_counter_ns() - start)
    reference = float(np.median(times["journal, append(record)"]))
    print(f"  {title:<28}{'p50':>9}{'p99':>9}{'p99.9':>9}{'max':>10}   p50 / journal's")
    for name, taken in times.items():
        p50, p99, p999, top = np.percentile(np.array(taken) / 1e3, [50, 99, 99.9, 100])
        print(f"    {name:<26}{p50:9.2f}{p99:9.2f}{p999:9.1f}{top:10.0f}   {p50 * 1e3 / reference:8.2f}")


def _tails(folder: Path, seconds: int) -> None:
    """Every call of one writer, with all new segments and deletions: at 1,000 calls/s, and as fast as it goes."""
    packed = pack_values(np.random.default_rng(0).random(1000))
    values = {f"metric_{i}": 0.1 * i for i in range(5)}
    makers: dict[str, Callable[[int], AnyRecord]] = {
        "5 scalars": lambda step: Metrics(time.time_ns(), step, values),
        "1,000 norms": lambda step: NormVector(time.time_ns(), step, 0, packed),
    }
    for pace, records in ((1000, 1000 * seconds), (0, 100_000)):
        title = f"{records} appends, {f'{pace} a second' if pace else 'back to back'}, us per call"
        print(f"\n{title:<58}{'over 1 ms':>10}{'dropped':>10}")
        for name, make in makers.items():
            with JournalWriter.create(_new(folder) / "j", "bench", max_disk=64 << 20) as writer:
                times = np.empty(records)
                begin = time.perf_counter()
                for step in range(records):
                    if pace:
                        time.sleep(max(0.0, begin + step / pace - time.perf_counter()))
                    start = time.perf_counter_ns()
                    writer.append(make(step))
                    times[step] = time.perf_counter_ns() - start
                dropped = sum(writer.dropped.values())
            p50, p99, p999, top = np.percentile(times / 1e3, [50, 99, 99.9, 100])
            over = int((times > 1e6).sum())
            print(f"    {name:<18}{p50:9.2f}{p99:9.2f}{p999:9.1f}{top:10.0f}{over:10}{dropped:10}")


def _throughput(folder: Path) -> None:
    payload = encode(NormVector(time.time_ns(), 1, 0, pack_values(np.random.default_rng(0).random(1000))))
    place = _new(folder) / "j"
    records = 40_000
    with JournalWriter.create(place, "bench", max_disk=1 << 30) as writer:
        start, cpu = time.perf_counter(), time.thread_time()
        for _ in range(records):
            writer.append_encoded(payload)
        wall, cpu = time.perf_counter() - start, time.thread_time() - cpu
    print(f"\ninto the journal: {records * 1000 / wall / 1e6:.0f} million points/s ({cpu / wall:.0%} of one core)")
    read = 0
    start = time.perf_counter()
    with JournalReader(place) as reader:
        while items := reader.read():
            read += len(items)
    print(f"out of the journal: {read * 1000 / (time.perf_counter() - start) / 1e6:.0f} million points/s, one reader")


class _Busy:
    """A thread that computes in pure Python as long as it is asked to."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def _spin(self) -> None:
        count = 0
        while not self._stop.is_set():
            for _ in range(1000):
                count += 1

    def __enter__(self) -> None:
        if self._wanted:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._wanted:
            self._thread.join()


if __name__ == "__main__":
    main()
