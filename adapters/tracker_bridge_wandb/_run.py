"""One run in W&B while its adapter is open: items to numbered rows, each exactly once. This module imports the SDK."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Batch,
    HistogramItem,
    Item,
    LedgerFile,
    Mark,
    Marker,
    Opened,
    ParamsItem,
    Rejected,
    RetryLater,
    Row,
    RunInfo,
    TagsItem,
    TextItem,
    merge_params,
)
from tracker_bridge_wandb import _session as session
from tracker_bridge_wandb._ledger import Draft, RowLedger, Segment, describe
from tracker_bridge_wandb._log import LogTail
from tracker_bridge_wandb._options import WandbOptions, folder_of, run_id_of
from tracker_bridge_wandb._rows import SendRow, cells_of, earlier_segments, sender, summarize
from tracker_bridge_wandb._values import (
    AXIS,
    EXIT_CODES,
    MAX_ROW,
    cells,
    config,
    file_name,
    histogram_cell,
    json_size,
    media_name,
    on_axis,
    parts,
    tags,
    text_page,
)

LOG_TIMEOUT = 10.0
"""Seconds in which W&B's service must have written rows to its log, or it counts as broken."""
ARRIVAL_TIMEOUT = 10.0
"""Seconds in which a server must count the rows that it was sent."""
SUMMARY_INTERVAL = 10.0
"""Seconds between two summaries, which repeat the last value of every series."""
_LEVELS = {"critical": "ERROR", "error": "ERROR", "warning": "WARN"}


class RunWriter:
    """Writes one run."""

    def __init__(self, options: WandbOptions, run: RunInfo) -> None:
        self._options = options
        self._info = run
        self._run_id = run_id_of(options, run)
        self._file = LedgerFile(run.private_dir / "wandb.msgpack", RowLedger)
        self._ledger = self._file.load()
        self._marker = Marker()
        self._recovered = False
        self._run: Any = None
        self._send_row: SendRow | None = None
        self._tail: LogTail | None = None
        self._broken: str | None = None
        self._stopped = False
        self._draft: Draft | None = None
        self._waiting: list[Draft] = []
        self._first = 0
        self._accepted: Mark = (-1, 0)
        self._next = 0
        self._unconfirmed: list[tuple[int, Draft]] = []
        self._latest: dict[str, str] = {}
        self._summarized = time.monotonic()
        self._params: dict[str, Any] = {}
        self._renamed: dict[str, str] = {}

    # --- opening and closing

    def open(self) -> Opened:
        """Recover what a crash left, start the SDK's run, send what the server lacks."""
        self._run = None
        session.release(self._info, self._run_id)
        self._recover()
        merge_params(self._params, self._info.params)
        values, _ = config(self._params)
        try:
            self._run = session.start(self._options, self._info, self._run_id, values, self._on_stop)
        except session.IdTakenError:
            if not self._ledger.segments:
                self._run_id = f"{run_id_of(self._options, self._info)}-{time.time_ns():x}"
            raise
        run = self._run
        self._broken, self._stopped = None, False
        if run.disabled:
            return Opened({"run_id": self._run_id})
        self._send_row = sender(run)
        session.describe(run, self._info)
        if self._ledger.segments:
            self._latest.setdefault("tracker_bridge_status", json.dumps("running"))
        self._continue()
        if self._renamed:
            self._configure_names()
        url = run.url if session.is_online(run) else session.log_path(run).parent.as_uri()
        return Opened({"run_id": self._run_id, "project": run.project or "", "entity": run.entity or ""}, url)

    def close(self, status: str | None) -> None:
        """End the run and, online, see that every row has arrived."""
        if self._run is None:
            if self._ledger.confirmed:
                return
            self.open()
        run = self._run
        if run.disabled:
            session.finish(run, 0)
            self._run = None
            return
        self._close_draft()
        self.flush()
        if status is not None:
            self._latest["tracker_bridge_status"] = json.dumps(status)
        self._summarize()
        online = session.is_online(run)
        session.finish(run, EXIT_CODES.get(status or "finished", 1))
        self._run = None
        if not self._wait_for_end():
            self._ledger.confirmed = False
            self._file.save(self._ledger)
            raise RetryLater(f"W&B's service has not written the run's end to {self._ledger.segments[-1].path}")
        if online:
            self._check_arrival(run)
        self._ledger.confirmed = True
        self._file.save(self._ledger)

    def flush(self) -> None:
        """Wait until the log holds every row handed over, then note how far we are."""
        if self._run is None or self._broken is not None or self._stopped:
            self._restart()
        if self._run.disabled:
            return
        self._wait_for_log()
        ledger = self._ledger
        ledger.done, ledger.base, ledger.marks, ledger.draft = self._accepted, self._next, [], self._draft
        self._file.save(ledger)
        self._unconfirmed.clear()
        self._marker.forget()
        if time.monotonic() - self._summarized > SUMMARY_INTERVAL:
            self._summarize()

    def _recover(self) -> None:
        """Learn from the last log how many rows were written; what this process still holds is sent again."""
        ledger = self._ledger
        if not ledger.segments:
            # A job that was queued again with its id only: its rows go behind those that are here.
            ledger.segments, ledger.base = earlier_segments(folder_of(self._options, self._info), self._run_id)
        rows = ledger.base
        if ledger.segments:
            last = ledger.segments[-1]
            path = Path(last.path)
            if path.exists():
                rows = max(rows, last.first + LogTail(path).look())
        if not self._recovered:
            ledger.settle(rows)
            self._accepted, self._draft, self._next = ledger.done, ledger.draft, ledger.base
            self._recovered = True
        self._unconfirmed = [(number, row) for number, row in self._unconfirmed if number >= rows]

    def _continue(self) -> None:
        """Send the rows that the server or the last log lacks, and begin a segment with the first of them."""
        ledger = self._ledger
        online = session.is_online(self._run)
        has = int(self._run.starting_step) if online else 0
        self._unconfirmed = [(number, draft) for number, draft in self._unconfirmed if number >= has]
        self._next = max(self._next, has)
        begin = min([number for number, _ in self._unconfirmed] + [self._next])
        earlier: list[tuple[int, dict[str, str]]] = []
        if online and has < begin:
            earlier = self._from_logs(has, begin)
            ledger.missing += begin - has - len(earlier)
            begin = earlier[0][0] if earlier else begin
        path = session.log_path(self._run)
        ledger.segments.append(Segment(str(path), begin))
        ledger.confirmed = ledger.confirmed and not online
        self._tail = LogTail(path)
        self._first = begin
        self._file.save(ledger)
        for number, row in earlier:
            self._hand_over(number, row)
        for number, draft in self._unconfirmed:
            self._hand_over(number, self._complete(number, draft))

    def _from_logs(self, first: int, end: int) -> list[tuple[int, dict[str, str]]]:
        """Rows `first` to before `end` from earlier segments; their media are saved again."""
        found: dict[int, dict[str, str]] = {}
        for segment in self._ledger.segments:
            path = Path(segment.path)
            if not path.exists():
                continue
            for number, history in enumerate(LogTail(path).history(), segment.first):
                if first <= number < end:
                    found[number] = cells_of(history)
            for media in (path.parent / "files" / "media").glob("**/*"):
                if media.is_file():
                    self._save_file(media, str(media.relative_to(path.parent / "files")))
        return sorted(found.items())

    def _restart(self) -> None:
        reason = self._broken or ("W&B stopped taking data for this run" if self._stopped else "W&B is not open")
        try:
            self.open()
        except RetryLater as later:
            raise RetryLater(f"{reason}; {later.reason}", after=later.after) from later

    def _on_stop(self) -> None:
        # Called on a thread of the SDK after a reply that its uploader never recovers from (or a stop in the web page).
        self._stopped = True

    def _wait_for_log(self) -> None:
        tail, missing = self._tail, self._next
        assert tail is not None
        deadline = time.monotonic() + LOG_TIMEOUT
        pause = 0.002
        while True:
            try:
                if self._first + tail.look() >= missing:
                    return
            except OSError as error:
                self._broken = f"W&B's log cannot be read: {error}"
                raise RetryLater(self._broken) from error
            if time.monotonic() > deadline:
                self._broken = f"W&B's service has not written its log for {LOG_TIMEOUT:.0f} s"
                raise RetryLater(self._broken)
            time.sleep(pause)
            pause = min(1.25 * pause, 0.05)

    def _wait_for_end(self) -> bool:
        # `finish` returns before the service has closed its log.
        deadline = time.monotonic() + LOG_TIMEOUT
        while self._tail is not None and not self._tail.ended and time.monotonic() < deadline:
            time.sleep(0.005)
            self._tail.look()
        return self._tail is None or self._tail.ended

    def _check_arrival(self, run: Any) -> None:
        expected = self._next - self._ledger.missing
        deadline = time.monotonic() + ARRIVAL_TIMEOUT
        pause = 0.1
        while True:
            arrived = session.lines_on_server(run)
            if arrived is None or arrived >= expected:
                return
            if time.monotonic() > deadline:
                path = self._ledger.segments[-1].path
                raise RetryLater(f"W&B has {arrived} of {expected} rows; all are in {path}")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    # --- writing

    def write(self, batch: Batch) -> None:
        """Hand over what of the batch is not yet; then refuse what W&B cannot hold."""
        if self._run is None or self._broken is not None:
            self._restart()
        if self._run.disabled:
            return
        if batch.renamed:
            self._renamed.update(batch.renamed)
            self._configure_names()
        bad: list[tuple[Item, str]] = []
        for item in batch.items:
            mark = self._marker(item)
            problem = _problem(item)
            if problem is not None:
                bad.append((item, problem))
            elif mark > self._accepted or isinstance(item, (ParamsItem, TagsItem)):
                # Params and tags are not rows; set again they do no harm, and a new log must have them.
                self._accept(item, mark)
        self._send_ready()
        if bad:
            raise Rejected([item for item, _ in bad], bad[0][1])

    def _accept(self, item: Item, mark: Mark) -> None:
        if isinstance(item, Row):
            step = on_axis(item.step)
            *earlier, (last, size) = parts(cells(item.names, item.values), MAX_ROW)
            for part, bytes_of_part in earlier:
                # Only the last part completes the row.
                self._add(step, item.time_ns, part, bytes_of_part, self._accepted)
            self._add(step, item.time_ns, last, size, mark)
        elif isinstance(item, HistogramItem):
            self._add_one(item, histogram_cell(item.edges, item.counts), mark)
        elif isinstance(item, TextItem):
            self._add_one(item, self._page(item), mark)
        elif isinstance(item, ArtifactItem) and item.media_type.startswith("image/"):
            self._add_one(item, self._image(item), mark)
        elif isinstance(item, ArtifactItem):
            self._save_file(item.path, file_name(item.name, item.step))
        elif isinstance(item, ParamsItem):
            self._configure(item.params)
        elif isinstance(item, TagsItem):
            self._run.tags = tags(item.now)
        elif isinstance(item, AlertItem) and mark > self._ledger.alerted:
            self._run.alert(item.title or item.rule, item.text, level=_LEVELS.get(item.severity, "INFO"))
            self._ledger.alerted = mark
            self._file.save(self._ledger)
        self._accepted = max(self._accepted, mark)

    def _add_one(self, item: HistogramItem | TextItem | ArtifactItem, cell: str, mark: Mark) -> None:
        column = {item.name: cell}
        self._add(on_axis(item.step), item.time_ns, column, json_size(column), mark)

    def _add(self, step: float | None, time_ns: int, new: dict[str, str], size: int, mark: Mark) -> None:
        """Into the open row if it is of this step and has none of these columns; else into the next one."""
        draft = self._draft
        if draft is not None:
            joins = step is None or draft.step in (step, None)
            if joins and draft.size + size <= MAX_ROW and draft.cells.keys().isdisjoint(new):
                draft.cells.update(new)
                draft.step = draft.step if step is None else step
                draft.size += size
                draft.mark = mark
                return
            self._waiting.append(draft)
        self._draft = Draft(step, time_ns, mark, new, size)

    def _close_draft(self) -> None:
        if self._draft is not None:
            self._waiting.append(self._draft)
            self._draft = None
            self._send_ready()

    def _send_ready(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        numbered = list(enumerate(rows, self._next))
        # Kept until the log is known to have them: should the service die, they are handed over again.
        self._unconfirmed += numbered
        self._next += len(rows)
        self._ledger.marks += [row.mark for row in rows]
        try:
            self._file.save(self._ledger)
        except OSError as error:
            self._broken = f"the adapter's own file cannot be written: {error}"
            raise RetryLater(self._broken) from error
        for number, row in numbered:
            self._hand_over(number, self._complete(number, row))

    def _complete(self, number: int, row: Draft) -> Mapping[str, str]:
        added = describe(row, number, AXIS, self._info.started_ns)
        self._latest.update(row.cells)
        if row.step is not None:
            self._latest[AXIS] = json.dumps(row.step)
        return {**row.cells, **{name: json.dumps(value) for name, value in added.items()}}

    def _hand_over(self, number: int, row: Mapping[str, str]) -> None:
        if self._broken is not None:
            return
        assert self._send_row is not None
        try:
            self._send_row(number, row)
        except Exception as error:
            self._broken = f"W&B's service is gone: {type(error).__name__}: {error}"
            raise RetryLater(self._broken) from error

    # --- what is not a number

    def _page(self, item: TextItem) -> str:
        page = wandb.Html(text_page(item.text), inject=False, data_is_not_path=True)
        page.bind_to_run(self._run, item.name, self._next)
        return json.dumps(page.to_json(self._run))

    def _image(self, item: ArtifactItem) -> str:
        content = item.path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        ending = item.path.suffix or "." + item.media_type.partition("/")[2]
        path = media_name(item.name, item.step, digest, ending)
        self._save_file(item.path, path)
        described: dict[str, Any] = {"_type": "image-file", "sha256": digest, "size": len(content), "path": path}
        described["format"] = ending[1:]
        if content[:8] == b"\x89PNG\r\n\x1a\n":
            described["width"] = int.from_bytes(content[16:20], "big")
            described["height"] = int.from_bytes(content[20:24], "big")
        return json.dumps(described)

    def _save_file(self, source: Path, name: str) -> None:
        target = Path(self._run.dir) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        self._run.save(str(target), base_path=self._run.dir, policy="now")

    def _configure(self, params: Mapping[str, Any]) -> None:
        merge_params(self._params, params)
        values, cut = config({key: self._params[key] for key in params})
        self._run.config.update(values, allow_val_change=True)
        if cut:
            whole = self._info.private_dir / "params.json"
            whole.write_text(json.dumps(self._params, default=str), encoding="utf-8", errors="backslashreplace")
            self._save_file(whole, "tracker_bridge/params.json")

    def _configure_names(self) -> None:
        values, _ = config({"tracker_bridge_names": self._renamed})
        self._run.config.update(values, allow_val_change=True)

    def _summarize(self) -> None:
        if self._latest:
            latest, self._latest = self._latest, {}
            summarize(self._run, latest)
        self._summarized = time.monotonic()


def _problem(item: Item) -> str | None:
    if isinstance(item, HistogramItem):
        if not len(item.counts) or len(item.edges) != len(item.counts) + 1:
            return "a histogram needs one more edge than counts"
        if not (np.isfinite(item.edges).all() and np.isfinite(item.counts).all()):
            return "W&B takes finite histogram edges and counts only"
    step = getattr(item, "step", None)
    return None if step is None or math.isfinite(step) else "W&B takes no step that is not finite"
