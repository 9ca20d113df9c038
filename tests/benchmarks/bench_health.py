"""How fast the health rules judge, and that their memory does not grow with the number of steps.

    python tests/benchmarks/bench_health.py

For each number of layers: points (norms) judged a second by one core, beside the decoding of the same records, which
whoever delivers or reads a journal pays anyway; both are measured in turns. Then the size of the rules' memory, and
what the process has allocated for them, after 1,000 and after 20,000 steps.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc

import numpy as np

from tracker_bridge.health import Monitor
from tracker_bridge.records import Metrics, NormVector, SeriesTable, decode, encode, pack_values

TARGET = 200_000


def stream(layers: int, steps: int) -> list[bytes]:
    """Encoded records of a healthy run."""
    random = np.random.default_rng(0)
    base = np.exp(random.normal(-3, 1, layers))
    names = tuple(f"encoder.layer.{slot // 16}.part{slot % 16}.weight" for slot in range(layers))
    records: list[bytes] = [encode(SeriesTable(0, 0, "gradients", names, (4096,) * layers))]
    for step in range(steps):
        values = base * np.exp(random.normal(0, 0.3, layers))
        records.append(encode(NormVector(step, step, 0, pack_values(values), clip_coefficient=0.9, max_norm=1.0)))
        records.append(encode(Metrics(step, step, {"loss": 2.0 * 0.999**step + 0.1, "lr": 1e-3})))
    return records


def speed(layers: int, steps: int, rounds: int = 5) -> tuple[float, float, int]:
    """(points judged a second, the same for decoding alone, alerts)."""
    encoded = stream(layers, steps)
    judging, decoding, alerts = [], [], 0
    for _ in range(rounds):
        begin = time.process_time()
        records = [decode(payload) for payload in encoded]
        decoding.append(time.process_time() - begin)
        monitor = Monitor()
        begin = time.process_time()
        alerts = sum(len(monitor.feed(record)) for record in records)
        judging.append(time.process_time() - begin)
    points = layers * steps
    return points / statistics.median(judging), points / statistics.median(decoding), alerts


def memory(layers: int, steps: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(steps, bytes of the snapshot, bytes allocated since the start) after each of `steps`."""
    random = np.random.default_rng(0)
    names = tuple(f"encoder.layer.{slot}.weight" for slot in range(layers))
    tracemalloc.start()
    monitor = Monitor()
    monitor.feed(SeriesTable(0, 0, "gradients", names, (4096,) * layers))
    results, done = [], 0
    for target in steps:
        for step in range(done, target):
            values = np.exp(random.normal(0, 0.3, layers))
            monitor.feed(NormVector(step, step, 0, pack_values(values), clip_coefficient=0.9))
            monitor.feed(Metrics(step, step, {"loss": float(random.normal(1, 0.1)), "lr": float(random.random())}))
        done = target
        results.append((target, len(monitor.snapshot()), tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    return results


def main() -> None:
    print(f"{'layers':>8} {'judged/s':>12} {'decoded/s':>12} {'ratio':>7} {'us/step':>9} {'of target':>10}")
    for layers, steps in ((10, 4000), (30, 4000), (100, 2000), (300, 1500), (3000, 300)):
        judged, decoded, alerts = speed(layers, steps)
        assert alerts == 0
        print(
            f"{layers:>8} {judged:>12,.0f} {decoded:>12,.0f} {decoded / judged:>7.1f} {layers / judged * 1e6:>9.0f} "
            f"{judged / TARGET:>9.1f}x"
        )
    for steps, snapshot, allocated in memory(300, (1000, 20_000)):
        print(f"300 layers after {steps:>6,} steps: snapshot {snapshot >> 10:,} KiB, allocated {allocated >> 10:,} KiB")


if __name__ == "__main__":
    main()
