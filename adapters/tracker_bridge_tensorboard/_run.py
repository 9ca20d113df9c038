"""One open run: items become events in lanes, what is known about the run becomes the files of `_session`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tracker_bridge.adapter import (
    AlertItem,
    ArtifactItem,
    Batch,
    HistogramItem,
    Item,
    NameMap,
    NameRule,
    ParamsItem,
    Rejected,
    RetryLater,
    Row,
    RunInfo,
    TagsItem,
    TextItem,
    merge_params,
)
from tracker_bridge_tensorboard._encoding import Template, summary_event
from tracker_bridge_tensorboard._lanes import MOST_LATE_LANES, Event, Lanes, Numbers, digest
from tracker_bridge_tensorboard._location import (
    ABOUT,
    STATUS,
    event_file,
    event_files,
    next_stamp,
    part_files,
    run_directories,
)
from tracker_bridge_tensorboard._memory import FILE_NAME, Memory, belongs_to, claim, load_memory, save_memory
from tracker_bridge_tensorboard._options import TensorBoardOptions
from tracker_bridge_tensorboard._session import PARAMS_FILE, end_file, params_json, start_file
from tracker_bridge_tensorboard._summaries import HISTOGRAM, IMAGE, TEXT, histogram_summary, image_summary, text_summary

_MOST_LAYOUTS = 4096
_NO_LANE = f"the step goes back, and {MOST_LATE_LANES} sub-runs for such points are in use already"


def open_run(options: TensorBoardOptions, run: RunInfo, names: NameRule) -> RunWriter:
    """The writer for `run`. Raises `RetryLater`."""
    try:
        return RunWriter(options, run, names)
    except OSError as error:
        raise RetryLater(f"{options.log_dir}: {error.strerror or error}") from error


class RunWriter:
    """Writes one run below `log_dir`. Where the disk fails a method raises `RetryLater`, and nothing is half done."""

    def __init__(self, options: TensorBoardOptions, run: RunInfo, names: NameRule) -> None:
        self._run = run
        self._suffix = options.filename_suffix
        self.directory = _find_directory(options, run)
        self.directory.mkdir(parents=True, exist_ok=True)
        memory = load_memory(self.directory)
        if memory is None or not belongs_to(memory, run):
            memory = Memory(run.run_id, run.backend, run.started_ns)
        if memory.started_ns != run.started_ns:
            memory.started_ns, memory.sequence, memory.last = run.started_ns, -1, []
        if not memory.params:
            merge_params(memory.params, run.params)
        memory.run_tags = memory.run_tags or dict(run.tags)
        self._memory = memory
        self._done_before = self._sequence = memory.sequence
        self._last: list[bytes] = []
        self._stamp = next_stamp(self.directory, time.time_ns() // 1_000_000_000)
        self._lanes = Lanes(self.directory, self._stamp, self._suffix, memory.tags, memory.lanes, memory.last)
        self._layouts: dict[int, tuple[tuple[str, ...], Template, Numbers]] = {}
        self._by_names: dict[tuple[str, ...], tuple[Template, Numbers]] = {}
        self._name_map = NameMap(names)
        self._last_ns = memory.last_ns or run.started_ns
        self._version = 0
        self._about_is_old = self._changed = True
        for path in part_files(self.directory, STATUS):
            path.unlink()
        self.flush()

    def write(self, batch: Batch) -> None:
        """Store the batch. Raises `RetryLater` (nothing is stored) and `Rejected`."""
        refused: list[Item] = []
        reason = ""
        sequence, last = self._sequence, [*self._last]
        self._lanes.begin()
        try:
            for item in _late_rows_sorted(batch.items):
                if item.sequence < self._done_before:
                    continue
                event, problem = self._event(item)
                if event is not None and not self._lanes.put(event):
                    problem = _NO_LANE
                if problem:
                    refused.append(item)
                    reason = reason or problem
                    continue
                if item.sequence > sequence:
                    sequence, last = item.sequence, []
                if item.sequence == sequence and event is not None:
                    last.append(event.key)
            self._lanes.commit(batch.items[-1].time_ns if batch.items else self._last_ns)
        except OSError as error:
            self._lanes.rollback()
            raise self._trouble(error) from error
        except BaseException:
            self._lanes.rollback()
            raise
        self._sequence, self._last = sequence, last
        self._last_ns = max([self._last_ns, *(item.time_ns for item in batch.items)])
        self._changed = True
        if not batch.renamed.items() <= self._memory.renamed.items():
            self._memory.renamed.update(batch.renamed)
            self._about_is_old = True
        if refused:
            raise Rejected(refused, reason)

    def flush(self) -> None:
        """Note how far the event files have got, and bring what is told about the run up to date."""
        if not self._changed:
            return
        try:
            self._lanes.main.open(self._last_ns)
            if self._about_is_old:
                self._replace_about()
            earlier = self._memory.last if self._sequence == self._memory.sequence else []
            self._memory.last = earlier + [digest(key) for key in self._last]
            self._memory.sequence = self._sequence
            self._memory.last_ns = self._last_ns
            self._last = []
            self._memory.tags, self._memory.lanes = self._lanes.remembered()
            save_memory(self.directory, self._memory)
        except OSError as error:
            raise self._trouble(error) from error
        self._changed = False

    def close(self, status: str | None) -> None:
        """Close the files; with a status, say that the run has ended so."""
        self.flush()
        if status is not None:
            path = event_file(self.directory, self._stamp, STATUS, self._suffix)
            try:
                _write_whole(path, end_file(status, self._last_ns, self._version))
            except OSError as error:
                raise self._trouble(error) from error
        self._lanes.close()

    def _trouble(self, error: OSError) -> RetryLater:
        return RetryLater(f"{self.directory}: {error.strerror or error}")

    def _event(self, item: Item) -> tuple[Event | None, str]:
        """What to write for the item (None: nothing now), or the reason why it cannot be written."""
        if isinstance(item, Row):
            template, numbers = self._layout(item.names)
            step = int(item.step)
            return Event(numbers, step, template.event(item.time_ns, step, item.values), late=item.late), ""
        if isinstance(item, ParamsItem):
            merge_params(self._memory.params, item.params)
            self._about_is_old = True
            return None, ""
        if isinstance(item, TagsItem):
            self._memory.run_tags = dict(item.now)
            self._about_is_old = True
            return None, ""
        if isinstance(item, HistogramItem):
            tag = f"{item.name}/{HISTOGRAM}"
            return self._summary(item.time_ns, item.step, tag, histogram_summary(tag, item.edges, item.counts)), ""
        if isinstance(item, TextItem):
            return self._text(item.time_ns, item.step, self._name_map(item.name), item.text), ""
        if isinstance(item, AlertItem):
            text = f"**{item.severity}: {item.title}**\n\n{item.text}"
            return self._text(item.time_ns, item.step, self._name_map(f"alerts/{item.rule}"), text), ""
        return self._artifact(item)

    def _artifact(self, item: ArtifactItem) -> tuple[Event | None, str]:
        name = self._name_map(item.name)
        try:
            if item.media_type in ("image/png", "image/jpeg"):
                tag = f"{name}/{IMAGE}"
                summary = image_summary(tag, item.path.read_bytes())
                if summary is not None:
                    return self._summary(item.time_ns, item.step, tag, summary), ""
            size = item.path.stat().st_size
        except OSError as error:
            return None, f"artifact cannot be read: {error.strerror or error}"
        # Event files hold no files: where it lies is all that can be said.
        text = f"`{item.path}` ({item.media_type}, {size} bytes)"
        return self._text(item.time_ns, item.step, self._name_map(f"artifacts/{item.name}"), text), ""

    def _text(self, time_ns: int, step: float | None, name: str, text: str) -> Event:
        tag = f"{name}/{TEXT}"
        return self._summary(time_ns, step, tag, text_summary(tag, text))

    def _summary(self, time_ns: int, step: float | None, tag: str, summary: bytes) -> Event:
        number = self._lanes.number(tag)
        numbers = np.array([number], dtype=np.intp)
        if step is not None:
            return Event(numbers, int(step), summary_event(time_ns, int(step), summary))
        # All texts without a step at step 0 would show the last only.
        step = self._lanes.main.next_step(number)
        return Event(numbers, step, summary_event(time_ns, step, summary), stepless=summary_event(time_ns, 0, summary))

    def _layout(self, names: tuple[str, ...]) -> tuple[Template, Numbers]:
        known = self._layouts.get(id(names))
        if known is not None and known[0] is names:
            return known[1], known[2]
        made = self._by_names.get(names)
        if made is None:
            if len(self._by_names) >= _MOST_LAYOUTS:
                self._by_names.clear()
            made = Template(names), np.array([self._lanes.number(name) for name in names], dtype=np.intp)
            self._by_names[names] = made
        if len(self._layouts) >= _MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[id(names)] = (names, *made)
        return made

    def _replace_about(self) -> None:
        memory = self._memory
        old = part_files(self.directory, ABOUT)
        path = event_file(self.directory, self._stamp, f"{ABOUT}.{self._version:06d}", self._suffix)
        about = start_file(self._run, memory.params, memory.run_tags, memory.renamed, self._version)
        _write_whole(path, about)
        for other in old:
            if other != path:
                other.unlink(missing_ok=True)
        if memory.params:
            _write_whole(self.directory / PARAMS_FILE, params_json(memory.params).encode())
        self._version += 1
        self._about_is_old = False


def _find_directory(options: TensorBoardOptions, run: RunInfo) -> Path:
    known = run.ids.get("log_dir")
    if known is not None:
        return Path(known)
    log_dir = (run.cwd / Path(options.log_dir).expanduser()).absolute()
    for directory in run_directories(log_dir, run, options.comment):
        memory = load_memory(directory)
        if memory is not None and belongs_to(memory, run):
            return directory
        # Other backends of this run may be looking for a place at this moment, on other threads or in a replay.
        free = not event_files(directory) and not (directory / FILE_NAME).exists()
        if free and claim(directory, Memory(run.run_id, run.backend, run.started_ns)):
            return directory
    raise RetryLater(f"{log_dir}: no directory is free for run {run.run_id}")


def _late_rows_sorted(items: Iterable[Item]) -> list[Item]:
    """The items with their late rows in the order of steps: fewer of them go back, fewer sub-runs are needed."""
    ordered = list(items)
    places = [place for place, item in enumerate(ordered) if isinstance(item, Row) and item.late]
    if len(places) > 1:
        late = sorted((ordered[place] for place in places), key=_step)
        for place, item in zip(places, late, strict=True):
            ordered[place] = item
    return ordered


def _step(item: Item) -> float:
    return item.step if isinstance(item, Row) else 0.0


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
