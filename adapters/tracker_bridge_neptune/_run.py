"""One run in Neptune while its adapter is open: items to database operations, each exactly once.

This module imports the SDK. It uses the SDK's own database object to commit many steps in one transaction, and falls
back to `Run.log_metrics` where a future SDK has no such object.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import UpdateRunSnapshot  # type: ignore[import-not-found]
from neptune_scale import Run
from neptune_scale.types import File, Histogram

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Batch,
    HistogramItem,
    Item,
    LedgerFile,
    Mark,
    Marker,
    NameMap,
    Opened,
    ParamsItem,
    Rejected,
    RetryLater,
    Row,
    RunInfo,
    TagsItem,
    TextItem,
    merge_params,
    param_text,
)
from tracker_bridge_neptune import _database as database
from tracker_bridge_neptune import _process as process
from tracker_bridge_neptune._ledger import OperationLedger
from tracker_bridge_neptune._options import (
    NeptuneOptions,
    log_directory_of,
    mode_of,
    project_of,
    run_id_of,
    token_of,
)
from tracker_bridge_neptune._values import (
    INT64,
    NAMES,
    Step,
    clean,
    configs,
    cut_text,
    narrow_histogram,
    provenance_configs,
    split_step,
    step_problem,
    tag_texts,
)

_log = logging.getLogger("tracker_bridge.neptune")
STALL = 30.0
"""Seconds without any progress after which a server counts as not answering (the SDK says nothing for 360 s)."""
CLOSE_STALL = 10.0
"""The same when the run ends."""
_TRANSACTION_BYTES = 2 * 1024 * 1024  # neptune-scale commits no more than this at once
_OVERHEAD = 32  # bytes of a point beside its name, at most


class RunWriter:
    """Writes one run. `refused` counts what a server refused after it had been handed over, by error."""

    def __init__(self, options: NeptuneOptions, run: RunInfo) -> None:
        self._options = options
        self._info = run
        self._mode = mode_of(options)
        self._project = project_of(options, run, self._mode)
        self._token = token_of(options) if self._mode == "async" else None
        self._run_id = run_id_of(options, run)
        self._names = NameMap(NAMES)
        self._file = LedgerFile(run.private_dir / "neptune.msgpack", OperationLedger)
        self._ledger = self._file.load()
        self._marker = Marker()
        self._all_params: dict[str, Any] = {}
        self._columns: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = {}
        self._metrics: set[str] = set()
        self._run: Any = None
        self._repository: Any = None
        self._database: Path | None = None
        self._trouble: str | None = None
        self._at_exit: Callable[[], None] | None = None
        self._progress = (0, time.monotonic())
        self._problems: dict[int, tuple[Item, str | None]] = {}
        self.refused: Counter[str] = Counter()
        self._lock = threading.Lock()

    # --- opening and closing

    def open(self) -> Opened:
        """Recover what a crash left, send what waits, begin a database."""
        if self._mode == "disabled":
            return Opened({"run_id": self._run_id, "project": self._project})
        self._abandon()
        process.kill_stale(self._ledger.sync_process)
        self._settle()
        if self._token is not None:
            self._send_unsent(self._token, STALL)
        self._begin()
        run = self._info
        self._assign(
            {
                **provenance_configs(run.provenance),
                "tracker_bridge/run_id": clean(run.run_id),
                "tracker_bridge/status": "running",
                **({"tracker_bridge/name": clean(run.name)} if run.name else {}),
            }
        )
        self._params(run.params)
        self._tags(tag_texts(run.tags))
        url = self._run.get_run_url() if self._mode == "async" else self._database.as_uri() if self._database else None
        return Opened({"run_id": self._run_id, "project": self._project}, url)

    def close(self, status: str | None) -> None:
        """End the run and see that everything was sent."""
        if self._run is not None:
            if status is not None:
                self._settle()
                self._assign({"tracker_bridge/status": status})
            self._end()
        elif self._token is not None:
            self._send_unsent(self._token, CLOSE_STALL)
        self._marker.forget()
        self._problems.clear()

    def flush(self) -> None:
        """Everything is committed; only a server that takes nothing is news."""
        self._marker.forget()
        self._problems.clear()
        if self._mode != "async":
            return
        if self._run is None or self._trouble is not None or not process.alive(self._run):
            self._restart()
        waiting = self._waiting()
        sent = _read(database.operations, self._path) - waiting
        before, since = self._progress
        now = time.monotonic()
        if waiting == 0 or sent > before:
            self._progress = (sent, now)
        elif now - since > STALL:
            silence = f"Neptune's server has taken nothing for {now - since:.0f} s"
            raise RetryLater(f"{silence}; {waiting} operations wait in {self._database}")

    def _begin(self) -> None:
        run = self._info
        directory = log_directory_of(self._options, run)
        experiment = self._options.experiment_name or run.experiment or run.name
        started = run.started_ns or time.time_ns()
        with process.quiet_start():
            self._run = Run(
                run_id=self._run_id,
                project=self._project,
                api_token=self._token,
                mode=self._mode,
                experiment_name=clean(experiment)[:180] if experiment else None,
                creation_time=datetime.fromtimestamp(started / 1e9, timezone.utc),
                fork_run_id=None if run.ids else self._options.fork_run_id,
                fork_step=None if run.ids else self._options.fork_step,
                log_directory=directory,
                inherit_configs=self._options.inherit_configs,
                enable_console_log_capture=False,
                source_tracking_config=None,
                on_error_callback=self._on_error,
                on_network_error_callback=self._on_network_error,
                on_warning_callback=self._on_warning,
            )
        self._at_exit = process.bound_exit(self._run)
        self._trouble = None
        self._repository = _bulk_store(self._run)
        self._database = process.database_of(self._run, directory)
        ledger = self._ledger
        ledger.database = str(self._database)
        ledger.unsent = [*ledger.unsent, ledger.database]
        ledger.base, ledger.marks, ledger.tags = database.operations(self._database), [], []
        ledger.sync_process = process.identity(self._run)
        self._progress = (0, time.monotonic())
        self._file.save(ledger)

    def _settle(self) -> None:
        """Learn from the last database's own counter how much of what was intended was committed."""
        ledger = self._ledger
        if ledger.database and ledger.marks:
            path = Path(ledger.database)
            if path.exists():
                ledger.settle(_read(database.operations, path))
                self._file.save(ledger)

    def _send_unsent(self, token: str, stall: float) -> None:
        """Have a server take the databases of earlier openings, oldest first: steps of a series must only grow."""
        while self._ledger.unsent:
            path = Path(self._ledger.unsent[0])
            if path.exists() and _read(database.waiting, path):
                left = process.send(path, token, stall)
                if left:
                    raise RetryLater(_kept(left, path))
            process.remove(path)
            self._ledger.unsent = self._ledger.unsent[1:]
            self._file.save(self._ledger)

    def _end(self) -> None:
        run, path = self._run, self._database
        assert path is not None
        if self._mode == "async":
            self._wait_for_server(path)
        left = self._waiting()
        self._file.save(self._ledger)
        process.close(run, self._at_exit)
        self._run = self._repository = None
        self._ledger.sync_process = None
        if self._mode == "async" and not left:
            self._ledger.unsent = [other for other in self._ledger.unsent if other != str(path)]
        self._file.save(self._ledger)
        if self._mode == "async" and left:
            raise RetryLater(_kept(left, path))

    def _wait_for_server(self, path: Path) -> None:
        try:
            process.wait_until_sent(path, self._run, CLOSE_STALL)
        except sqlite3.Error as error:
            raise RetryLater(f"Neptune's local database cannot be read: {path}: {error}") from error

    def _restart(self) -> None:
        """The SDK's process has given up, for good; its database is sent by another one."""
        reason = self._trouble or "Neptune's upload process has ended"
        self._abandon()
        try:
            self.open()
        except RetryLater as later:
            raise RetryLater(f"{reason}; {later.reason}", after=later.after) from later

    def _abandon(self) -> None:
        if self._run is not None:
            process.close(self._run, self._at_exit)
        self._run = self._repository = None

    def _waiting(self) -> int:
        return _read(database.waiting, self._database) if self._database and self._database.exists() else 0

    # --- callbacks, on a thread of the SDK

    def _on_error(self, error: BaseException, _: float | None) -> None:
        kind = type(error).__name__
        self._count(kind, error)
        if kind in process.FATAL and self._trouble is None:
            self._trouble = f"{kind}: {process.plain(error)}"

    def _on_warning(self, error: BaseException, _: float | None) -> None:
        if type(error).__name__ != "NeptuneRunDuplicate":  # expected: each opening creates the run again
            self._count(type(error).__name__, error)

    def _count(self, kind: str, error: BaseException) -> None:
        with self._lock:
            self.refused[kind] += 1
            first = self.refused[kind] == 1
        if first:
            _log.warning("Neptune reports %s: %s (said once for each kind)", kind, process.plain(error))

    def _on_network_error(self, error: BaseException, _: float | None) -> None:
        """`flush` sees that nothing moves long before the SDK says so."""

    # --- writing

    def write(self, batch: Batch) -> None:
        """Commit what of the batch is not yet stored; then refuse what Neptune cannot hold."""
        if self._mode == "disabled":
            return
        if self._run is None:
            self._restart()
        # A try that failed has left its mark open: what is written besides must not be taken for its item.
        self._settle()
        if batch.renamed:
            self._assign({f"tracker_bridge/names/{name}": clean(old) for name, old in batch.renamed.items()})
        bad: list[tuple[Item, str]] = []
        rows: list[tuple[Row, Mark]] = []
        for item in batch.items:
            mark = self._marker(item)
            problem = self._problem(item)
            if problem is not None:
                bad.append((item, problem))
            elif mark <= self._ledger.done:
                continue
            elif isinstance(item, Row):
                rows.append((item, mark))
            elif isinstance(item, (ParamsItem, TagsItem)):
                # Some take several operations, none of which tells that all are there; repeated they do no harm.
                self._commit(rows)
                rows = []
                self._describe(item)
                self._ledger.done = max(self._ledger.done, mark)
            else:
                self._commit(rows)
                rows = []
                self._intend([mark])
                self._other(item)
                self._settled(item, mark)
        self._commit(rows)
        if bad:
            raise Rejected([item for item, _ in bad], bad[0][1])

    def _problem(self, item: Item) -> str | None:
        known = self._problems.get(id(item))
        if known is None:
            known = self._problems[id(item)] = (item, self._find_problem(item))
        return known[1]

    def _find_problem(self, item: Item) -> str | None:
        if isinstance(item, Row):
            return step_problem(item.step)
        if isinstance(item, HistogramItem):
            if not len(item.counts) or len(item.edges) != len(item.counts) + 1:
                return "a histogram needs one more edge than counts"
            if not (np.isfinite(item.edges).all() and (np.diff(item.edges) > 0).all()):
                return "Neptune takes finite, increasing histogram edges only"
            if not (np.isfinite(item.counts).all() and (item.counts >= 0).all()):
                return "Neptune takes finite, non-negative histogram counts only"
            if not item.counts.sum() < INT64:
                return "Neptune takes histograms of fewer than 2^63 values only"
        series = _series_of(item)
        if series is None:
            return None
        name, step = series
        problem = step_problem(step)
        if problem is not None:
            return problem
        last = self._ledger.last_steps.get(name)
        if last is not None and step <= last and self._marker(item) > self._ledger.done:
            return "step_not_increasing"
        return None

    def _commit(self, rows: Sequence[tuple[Row, Mark]]) -> None:
        """Rows to snapshots to transactions, the ledger first."""
        if not rows:
            return
        snapshots: list[tuple[UpdateRunSnapshot, Mark]] = []
        for row, mark in rows:
            parts = self._snapshots(row)
            # Only the last part completes the row; the others repeat what held before it.
            before = snapshots[-1][1] if snapshots else self._ledger.done
            snapshots += [(part, before) for part in parts[:-1]] + [(parts[-1], mark)]
        self._intend([mark for _, mark in snapshots])
        for first, last in _transactions([snapshot for snapshot, _ in snapshots]):
            self._save([snapshot for snapshot, _ in snapshots[first:last]])
            self._ledger.done = max(self._ledger.done, snapshots[last - 1][1])
        self._ledger.base += len(snapshots)
        self._ledger.marks = []

    def _save(self, snapshots: list[UpdateRunSnapshot]) -> None:
        if self._repository is not None:
            stored = self._repository.save_update_run_snapshots(snapshots) > 0
        else:
            before = _read(database.operations, self._path)
            for snapshot in snapshots:
                self._run.log_metrics(
                    {name: value.float64 for name, value in snapshot.append.items()},
                    step=snapshot.step.whole + snapshot.step.micro / 1e6,
                    timestamp=snapshot.timestamp.ToDatetime(timezone.utc),
                )
            stored = _read(database.operations, self._path) >= before + len(snapshots)
        if not stored:
            self._settle()
            raise RetryLater(f"Neptune's local database does not take anything now: {self._database}")

    @property
    def _path(self) -> Path:
        assert self._database is not None
        return self._database

    def _intend(self, marks: list[Mark]) -> None:
        self._ledger.marks = marks
        self._file.save(self._ledger)

    def _settled(self, item: Item, mark: Mark) -> None:
        operations = _read(database.operations, self._path)
        if operations <= self._ledger.base:
            raise RetryLater(f"Neptune's local database did not take a record: {self._database}")
        self._ledger.done = max(self._ledger.done, mark)
        self._ledger.base, self._ledger.marks = operations, []
        series = _series_of(item)
        if series is not None:
            self._ledger.last_steps[series[0]] = float(series[1])

    def _snapshots(self, row: Row) -> list[UpdateRunSnapshot]:
        names, size = self._columns.get(row.names) or self._make_columns(row.names)
        parts = -(-size // (_TRANSACTION_BYTES - 1024))
        length = -(-len(names) // parts)
        return [self._snapshot(row, names, slice(start, start + length)) for start in range(0, len(names), length)]

    def _make_columns(self, names: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        if len(self._columns) > 1000:
            self._columns.clear()
        self._metrics.update(names)
        kinds = self._ledger.kinds
        free = tuple(f"{name}/value" if name in kinds else name for name in names) if kinds else names
        made = self._columns[names] = (free, sum(len(name.encode()) + _OVERHEAD for name in free))
        return made

    def _attribute(self, name: str, kind: str) -> str:
        """The attribute of a text, histogram or file, apart from metrics and other kinds of the same name."""
        for attribute in (self._names(name), self._names(f"{name}/{kind}")):
            known = self._ledger.kinds.get(attribute)
            if known == kind or (known is None and attribute not in self._metrics):
                if known is None:
                    self._ledger.kinds[attribute] = kind
                    self._columns.clear()
                return attribute
        return self._names(f"{name}/{kind}")

    def _snapshot(self, row: Row, names: tuple[str, ...], part: slice) -> UpdateRunSnapshot:
        snapshot = UpdateRunSnapshot()
        # The step must be present even where it is 0.
        snapshot.step.SetInParent()
        snapshot.step.whole, snapshot.step.micro = split_step(row.step)
        snapshot.timestamp.FromNanoseconds(self._clock(row.time_ns))
        append = snapshot.append
        for name, value in zip(names[part], row.values[part].tolist(), strict=True):
            append[name].float64 = value
        return snapshot

    def _clock(self, time_ns: int) -> int:
        # The server refuses a series whose time goes backwards, as it does when a clock is set.
        self._ledger.clock_ns = max(self._ledger.clock_ns, time_ns)
        return self._ledger.clock_ns

    def _time(self, item: Item) -> datetime:
        return datetime.fromtimestamp(self._clock(item.time_ns) / 1e9, timezone.utc)

    def _describe(self, item: ParamsItem | TagsItem) -> None:
        if isinstance(item, ParamsItem):
            self._params(item.params)
        else:
            self._tags(tag_texts(item.now))

    def _other(self, item: Item) -> None:
        if isinstance(item, TextItem):
            text = cut_text(clean(item.text))
            if item.step is None:
                self._assign({self._attribute(item.name, "text"): text})
            else:
                name = self._attribute(item.name, "texts")
                self._run.log_string_series({name: text}, step=item.step, timestamp=self._time(item))
        elif isinstance(item, AlertItem):
            text = cut_text(clean(f"{item.severity}: {item.title}\n{item.text}"))
            name = f"health/{item.rule}/alerts"
            self._run.log_string_series({name: text}, step=item.step, timestamp=self._time(item))
        elif isinstance(item, HistogramItem):
            edges, counts = narrow_histogram(item.edges, item.counts)
            whole = bool((counts == np.floor(counts)).all())
            made = (
                Histogram(bin_edges=edges.tolist(), counts=[int(count) for count in counts])
                if whole
                else Histogram(bin_edges=edges.tolist(), densities=(counts / (counts.sum() * np.diff(edges))).tolist())
            )
            name = self._attribute(item.name, "histogram")
            self._run.log_histograms({name: made}, step=item.step, timestamp=self._time(item))
        elif isinstance(item, ArtifactItem):
            self._artifact(item)

    def _artifact(self, item: ArtifactItem) -> None:
        file = File(source=item.path, mime_type=item.media_type[:128])
        if item.step is None:
            self._run.assign_files({self._attribute(item.name, "file"): file})
        else:
            self._run.log_files({self._attribute(item.name, "files"): file}, step=item.step, timestamp=self._time(item))

    def _params(self, params: Mapping[str, Any]) -> None:
        if not params:
            return
        values, cut = configs(params, self._names)
        merge_params(self._all_params, params)
        self._assign(values)
        if cut:
            whole = param_text(self._all_params).encode("utf-8", "backslashreplace")
            with self._operation():
                self._run.assign_files({"tracker_bridge/params": File(source=whole, mime_type="application/json")})

    def _tags(self, wanted: set[str]) -> None:
        known = set(self._ledger.tags)
        if wanted - known:
            with self._operation():
                self._run.add_tags(sorted(wanted - known))
        if known - wanted:
            with self._operation():
                self._run.remove_tags(sorted(known - wanted))
        self._ledger.tags = sorted(wanted)

    def _assign(self, values: dict[str, Any]) -> None:
        with self._operation():
            self._run.log_configs(values)

    @contextmanager
    def _operation(self) -> Iterator[None]:
        """Around a call that adds operations: that it did, and that those of no item are none of the next one's."""
        before = _read(database.operations, self._path)
        yield
        operations = _read(database.operations, self._path)
        if operations <= before:
            raise RetryLater(f"Neptune's local database did not take a record: {self._database}")
        if not self._ledger.marks:
            self._ledger.base = operations


def _bulk_store(run: Run) -> Any:
    """The SDK's database object, which takes many steps at once; None where this SDK has no such thing."""
    found = getattr(run, "_operations_repo", None)
    return found if hasattr(found, "save_update_run_snapshots") else None


def _series_of(item: Item) -> tuple[str, Step] | None:
    """The series and step of an item that is a point of a series other than a metric."""
    if isinstance(item, AlertItem):
        return f"AlertItem {item.rule}", item.step
    if isinstance(item, (TextItem, ArtifactItem, HistogramItem)) and item.step is not None:
        return f"{type(item).__name__} {item.name}", item.step
    return None


def _transactions(snapshots: Sequence[UpdateRunSnapshot]) -> list[tuple[int, int]]:
    """Ranges [first, last) of snapshots that the SDK commits in one transaction each."""
    ranges: list[tuple[int, int]] = []
    first = size = 0
    for index, snapshot in enumerate(snapshots):
        bytes_ = snapshot.ByteSize()
        if index > first and size + bytes_ > _TRANSACTION_BYTES:
            ranges.append((first, index))
            first, size = index, 0
        size += bytes_
    ranges.append((first, len(snapshots)))
    return ranges


def _read(ask: Callable[[Path], int], path: Path) -> int:
    try:
        return ask(path)
    except sqlite3.Error as error:
        raise RetryLater(f"Neptune's local database cannot be read: {path}: {error}") from error


def _kept(left: int, path: Path) -> str:
    return (
        f"Neptune's server has not taken {left} operations; they are in {path} (`neptune sync {path}` sends them too)"
    )
