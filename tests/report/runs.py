"""Run directories with the records that a test wants, written by the real journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import (
    AnyRecord,
    Metrics,
    NormVector,
    Params,
    RunFinished,
    RunStarted,
    SeriesTable,
    Tags,
    pack_mask,
    pack_values,
)
from tracker_bridge.rundir import Manifest, RunPaths, write_json

T0 = 1_790_000_000_000_000_000
"""When made-up runs began, in nanoseconds since the epoch."""


def write_run(root: Path, records: Iterable[AnyRecord], *, status: str = "finished", **manifest: Any) -> Path:
    """A run directory `root` with these records."""
    root.mkdir(parents=True)
    paths = RunPaths(root)
    fields = {"run_id": root.name, "status": status, "created_ns": T0, "finished_ns": T0 + 60 * 10**9, **manifest}
    write_json(paths.manifest, Manifest(**fields))
    writer = JournalWriter.create(paths.journal, fields["run_id"])
    for record in records:
        assert writer.append(record) is not None
    writer.close()
    return root


def names_of(layers: int) -> tuple[str, ...]:
    """Names as of a transformer with six parameters a block."""
    parts = (
        "attention.query.weight",
        "attention.query.bias",
        "attention.out.weight",
        "norm.weight",
        "mlp.weight",
        "mlp.bias",
    )
    return tuple(f"model.encoder.layer.{index // 6}.{parts[index % 6]}" for index in range(layers))


def training(
    layers: int = 24,
    steps: int = 300,
    *,
    spike_at: int | None = None,
    nan_at: int | None = None,
    max_norm: float | None = None,
    skipped: tuple[int, ...] = (),
    seed: int = 0,
    rate: float = 1e-3,
) -> Iterator[AnyRecord]:
    """A plausible run. At `spike_at` every norm is 500 times its usual; at `nan_at` the first half is NaN."""
    random = np.random.default_rng(seed)
    base = np.exp(random.normal(-2, 1, layers))
    yield RunStarted(T0, "r", 1, 1, "host")
    yield Params(T0, {"learning_rate": rate, "model": {"layers": layers, "name": "bert"}})
    yield Tags(T0, {"gradient_tracking": None, "team": "nlp"})
    yield SeriesTable(T0, 0, "gradients", names_of(layers), tuple(64 * (1 + slot % 5) for slot in range(layers)))
    for step in range(steps):
        now = T0 + step * 10**7
        values = base * np.exp(random.normal(0, 0.25, layers)) * (1 + 2 * np.exp(-step / 40))
        if step == spike_at:
            values *= 500
        if step == nan_at:
            values[: layers // 2] = np.nan
        total = float(np.sqrt((values**2).sum()))
        clip = None if max_norm is None else min(1.0, max_norm / (total + 1e-6))
        yield NormVector(
            now,
            step,
            0,
            pack_values(values),
            total=total,
            skipped=step in skipped,
            clip_coefficient=clip,
            max_norm=max_norm,
        )
        loss = float(0.4 + 2 * np.exp(-step / 80) + random.normal(0, 0.03))
        yield Metrics(now, step, {"train/loss": loss, "train/learning_rate": rate})
    yield RunFinished(T0 + steps * 10**7, "finished")


HOSTILE = (
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "</script><script>window.pwned=1</script>",
    '<a href="javascript:window.pwned=1">x</a>',
    "%{customdata}<b>bold</b>&lt;i&gt;",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eright-to-left",
    "{{data}}{{script}}",
    "__proto__",
)
"""Names that a stranger might choose."""


def hostile_records(steps: int = 120) -> Iterator[AnyRecord]:
    """A run in which every text is hostile, and a spike makes the layers' names appear in an alert."""
    random = np.random.default_rng(0)
    names = (*HOSTILE, "a.weight")
    yield Params(T0, {name: name for name in HOSTILE})
    yield Tags(T0, {**dict.fromkeys(HOSTILE), "key": HOSTILE[0]})
    yield SeriesTable(T0, 0, "gradients", names, (1,) * len(names))
    for step in range(steps):
        values = np.exp(random.normal(0, 0.2, len(names))) * (1000 if step == steps - 10 else 1)
        present = np.ones(len(names), dtype=bool)
        present[3] = step % 7 != 3
        yield NormVector(T0 + step, step, 0, pack_values(values), pack_mask(present))
        yield Metrics(T0 + step, step, {"</script>loss": 1.0, "loss": 1.0 + step % 3})
    yield RunFinished(T0 + steps, "failed", HOSTILE[0])
