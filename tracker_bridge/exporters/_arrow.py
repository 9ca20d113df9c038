"""Scalar series as Arrow tables, Parquet files and pandas frames. Needs pyarrow (and pandas for the last)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from tracker_bridge.exporters._items import Points, Selection, fractional, points, run_paths
from tracker_bridge.reader import RunReader, read
from tracker_bridge.rundir import RunPaths, load_manifest

METADATA = b"tracker_bridge"
"""Key of the schema's metadata under which run id, names, status, params and tags lie as JSON."""


def to_arrow(run: RunReader | str | Path, selection: Selection | None = None) -> Any:
    """The run's scalar series as one long `pyarrow.Table`, in the order in which they were logged.

    Columns: `name` dictionary<string>, `step` int64 (float64 if some step is a fraction), `time_ns` timestamp[ns, UTC],
    `value` float64. Raises `ImportError` naming what to install, `NotARunError`.
    """
    arrow = _needed("pyarrow")
    paths, wanted = run_paths(run), selection or Selection()
    schema = _schema(arrow, paths, wanted)
    return arrow.Table.from_batches(list(_batches(arrow, schema, paths, wanted)), schema).unify_dictionaries()


def to_pandas(run: RunReader | str | Path, selection: Selection | None = None) -> Any:
    """The run's scalar series as one long `pandas.DataFrame`: columns `name`, `step`, `time_ns`, `value`.

    For one column a series: `frame.pivot_table(index="step", columns="name", values="value", dropna=False)`.
    """
    _needed("pandas")
    return to_arrow(run, selection).to_pandas()


def write_parquet(paths: RunPaths, selection: Selection, target: Path) -> int:
    """Write the series to `target`; returns the number of points. Memory does not grow with it."""
    arrow, parquet = _needed("pyarrow"), _needed("pyarrow.parquet")
    schema = _schema(arrow, paths, selection)
    count = 0
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in _batches(arrow, schema, paths, selection):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _schema(arrow: ModuleType, paths: RunPaths, selection: Selection) -> Any:
    manifest, reader = load_manifest(paths), read(paths.root)
    about = {
        "run_id": manifest.run_id,
        "project": manifest.project,
        "experiment": manifest.experiment,
        "name": manifest.name,
        "status": reader.status,
        "params": reader.params,
        "tags": reader.tags,
    }
    return arrow.schema(
        [
            ("name", arrow.dictionary(arrow.int32(), arrow.string())),
            ("step", arrow.float64() if fractional(paths, selection) else arrow.int64()),
            ("time_ns", arrow.timestamp("ns", tz="UTC")),
            ("value", arrow.float64()),
        ],
        metadata={METADATA: json.dumps(msgspec.to_builtins(about, enc_hook=str)).encode()},
    )


def _batches(arrow: ModuleType, schema: Any, paths: RunPaths, selection: Selection) -> Iterator[Any]:
    for block in points(paths, selection):
        yield arrow.record_batch(_columns(arrow, schema, block), schema=schema)


def _columns(arrow: ModuleType, schema: Any, block: Points) -> list[Any]:
    names = arrow.DictionaryArray.from_arrays(arrow.array(block.codes, arrow.int32()), block.names)
    steps = arrow.array(block.steps, schema.field("step").type)
    return [names, steps, arrow.array(block.times).cast(schema.field("time_ns").type), arrow.array(block.values)]


def _needed(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        extra = "pandas" if package == "pandas" else "parquet"
        install = f'pip install "tracker-bridge[{extra}]"'
        raise ImportError(f"this needs {package}; install it with: {install}") from error
