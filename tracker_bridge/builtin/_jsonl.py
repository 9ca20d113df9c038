"""`jsonl`: one JSON object a line, appended to one file. Non-finite values are the strings "nan", "inf", "-inf"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar
from weakref import WeakValueDictionary

import msgspec

from tracker_bridge.adapter import (
    Adapter,
    AlertItem,
    ArtifactItem,
    Batch,
    Capabilities,
    HistogramItem,
    Item,
    Opened,
    Options,
    ParamRule,
    ParamsItem,
    RetryLater,
    Row,
    RunInfo,
    TagsItem,
    TextItem,
)
from tracker_bridge.rundir import FileLock, LockBusyError

_encode = msgspec.json.Encoder().encode
_open: WeakValueDictionary[Path, JsonlAdapter] = WeakValueDictionary()
# By the backend's own folder: who has a file open in this process.


class JsonlOptions(Options, frozen=True, kw_only=True):
    """`path`: the file; `{run_id}` in it is replaced. Relative to the working directory of the script.

    For all but the first of a run's jsonl backends `{run_id}` is `<run_id>-<backend>`.
    """

    path: str = "{run_id}.jsonl"


class JsonlAdapter(Adapter[JsonlOptions]):
    """Writes lines of the forms `{"step", "time_ns", "metrics"}`, `{"params"}`, `{"tags"}`, `{"status"}` and so on.

    `{"renamed"}` gives the originals of names that had to be changed.

    Each has the journal's `sequence`; lines that an earlier delivery had written already are not written again.
    """

    options_type = JsonlOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        step_type="float",
        duplicates="ignored",
        params=ParamRule(separator=None, typed=True),
        media=frozenset({"text", "histogram", "artifact"}),
    )

    _file: BinaryIO | None = None
    _lock: FileLock = FileLock(Path())

    def open(self, run: RunInfo) -> Opened:
        """Open the file for appending; a torn last line of a killed process is cut off.

        Raises `RetryLater` while another backend or process writes to it.
        """
        path = run.cwd / self.options.path.replace("{run_id}", run.own_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._let_go()
        before = _open.get(run.private_dir)
        if before is not None:
            before._let_go()  # an earlier opening of this very backend, whose courier was abandoned
        _open[run.private_dir] = self
        self._lock = FileLock(path)
        try:
            self._lock.acquire(timeout=0)
        except LockBusyError:
            raise RetryLater(f"another backend writes to {path}; give each a `path` of its own") from None
        self._file = path.open("ab+")
        self._written = _mend(self._file, run.started_ns)
        head = {"run_id": run.run_id, "project": run.project, "name": run.name, "attempt": run.attempt}
        self._line({**head, "started_ns": run.started_ns})
        return Opened({"path": str(path)}, str(path))

    def write(self, batch: Batch) -> None:
        """Append the batch."""
        if batch.renamed:
            self._line({"renamed": batch.renamed})
        for item in batch.items:
            if item.sequence > self._written:
                self._line(_plain(item))

    def flush(self) -> None:
        """Hand the lines to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self, status: str | None) -> None:
        """Append the status."""
        if status is not None:
            self._line({"status": status})
        self._let_go()

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def _line(self, value: dict[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError("the adapter is not open")
        self._file.write(_encode(value) + b"\n")


def _mend(file: BinaryIO, started_ns: int) -> int:
    """Cut a torn last line; returns the largest sequence of the journal begun at `started_ns`, -1 if there is none.

    A job that was queued again with its run id and an empty queue counts its records from 0 once more.
    """
    file.seek(0)
    written, end, ours = -1, 0, True
    for line in file:
        if not line.endswith(b"\n"):
            break
        end += len(line)
        content = msgspec.json.decode(line)
        if "attempt" in content:
            ours = content.get("started_ns", started_ns) == started_ns
        if ours:
            written = max(written, content.get("sequence", -1))
    file.truncate(end)
    return written


def _plain(item: Item) -> dict[str, Any]:
    head: dict[str, Any] = {"sequence": item.sequence, "time_ns": item.time_ns}
    if isinstance(item, Row):
        return head | {
            "step": item.step,
            "metrics": dict(zip(item.names, map(_number, item.values.tolist()), strict=True)),
        }
    if isinstance(item, ParamsItem):
        return head | {"params": _finite(item.params)}
    if isinstance(item, TagsItem):
        return head | {"tags": dict(item.now)}
    if isinstance(item, TextItem):
        return head | {"step": item.step, "text": {item.name: item.text}}
    if isinstance(item, ArtifactItem):
        return head | {"step": item.step, "artifact": {item.name: str(item.path)}}
    if isinstance(item, HistogramItem):
        shape = {"edges": item.edges.tolist(), "counts": item.counts.tolist()}
        return head | {"step": item.step, "histogram": {item.name: shape}}
    assert isinstance(item, AlertItem)
    return head | {"step": item.step, "alert": {"rule": item.rule, "title": item.title, "text": item.text}}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of this adapter."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
