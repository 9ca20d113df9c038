"""Whole trees of foreign runs: found one by one, imported by a bounded number of processes, reported at the end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import msgspec

from tracker_bridge.importers import _worker
from tracker_bridge.importers._journal import STAGING, Outcome, import_run
from tracker_bridge.importers._model import ForeignRun
from tracker_bridge.importers._registry import discover

_MOST_WORKERS = 4
_NEXT_WORKER = 0.3
"""Seconds of work that are left to be done before another process is worth its start, which takes as long."""


class ImportReport(msgspec.Struct, frozen=True):
    """The outcomes of all runs, in the order in which they were found, by what became of them."""

    imported: tuple[Outcome, ...]
    skipped: tuple[Outcome, ...]
    failed: tuple[Outcome, ...]

    @property
    def left_out(self) -> dict[str, int]:
        """What the imported runs' records cannot hold, counted by reason."""
        total: Counter[str] = Counter()
        for outcome in self.imported:
            total.update(outcome.left_out)
        return dict(total)


def import_tree(
    kind: str,
    path: str | Path,
    queue_dir: str | Path,
    *,
    workers: int | None = None,
    salvage: bool = False,
    file_roots: Sequence[str | Path] = (),
    on_progress: Callable[[Outcome], None] | None = None,
) -> ImportReport:
    """Import every run of `kind` at or below `path` into run directories in `queue_dir`.

    A run that is there already is skipped, so doing it twice changes nothing and an interrupted import goes on where
    it stopped. `workers`: processes, at most one for each run (default: the cores, 4 at most; 1: this process).
    `salvage`: import what is sound of damaged files instead of refusing the run. `file_roots`: folders besides `path`
    from which files that a run names may be copied. `on_progress` gets each outcome, never two at once, on any thread.

    Raises what `discover` raises; whatever is wrong with one run is in the report.
    """
    queue = Path(queue_dir).absolute()
    roots = tuple(str(Path(root)) for root in file_roots)
    found = (replace(run, file_roots=(*run.file_roots, *roots)) for run in discover(kind, path))
    count = min(_MOST_WORKERS, os.cpu_count() or 1) if workers is None else max(1, workers)
    first = list(islice(found, 2))
    outcomes: list[tuple[int, Outcome]] = []
    numbered = enumerate(chain(first, found))
    if count == 1 or len(first) < 2:
        for number, run in numbered:
            outcome = import_run(run, queue, salvage=salvage)
            outcomes.append((number, outcome))
            if on_progress is not None:
                on_progress(outcome)
    else:
        outcomes = _in_parallel(numbered, queue, count, salvage, on_progress)
    _tidy(queue)
    ordered = [outcome for _, outcome in sorted(outcomes, key=lambda pair: pair[0])]
    return ImportReport(
        imported=tuple(outcome for outcome in ordered if outcome.result == "imported"),
        skipped=tuple(outcome for outcome in ordered if outcome.result == "skipped"),
        failed=tuple(outcome for outcome in ordered if outcome.result == "failed"),
    )


def _in_parallel(
    runs: Iterable[tuple[int, ForeignRun]],
    queue: Path,
    count: int,
    salvage: bool,
    on_progress: Callable[[Outcome], None] | None,
) -> list[tuple[int, Outcome]]:
    outcomes: list[tuple[int, Outcome]] = []
    source, source_lock, report_lock = iter(runs), threading.Lock(), threading.Lock()
    stop = threading.Event()

    def work(number_of_worker: int) -> None:
        if stop.wait(number_of_worker * _NEXT_WORKER):
            return
        worker = _Worker()
        try:
            while not stop.is_set():
                with source_lock:
                    item = next(source, None)
                if item is None:
                    stop.set()  # the others end with the run that they are at
                    return
                number, run = item
                outcome = worker.run(run, queue, salvage)
                with report_lock:
                    outcomes.append((number, outcome))
                    if on_progress is not None:
                        on_progress(outcome)
        except BaseException:
            stop.set()
            raise
        finally:
            worker.close()

    with ThreadPoolExecutor(count, thread_name_prefix="tracker-bridge-import") as pool:
        try:
            for future in [pool.submit(work, number) for number in range(count)]:
                future.result()
        except BaseException:
            stop.set()
            raise
    return outcomes


class _Worker:
    """One process, started for its first run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, run: ForeignRun, queue: Path, salvage: bool) -> Outcome:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        request = _worker.Request(run, str(queue), salvage)
        answer = b""
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            pass  # It has ended; how is said below.
        if answer.endswith(b"\n"):
            return msgspec.json.decode(answer, type=Outcome)
        self.close()
        code = process.returncode
        ended = f"signal {-code}" if code < 0 else f"exit status {code}"
        why = f"the importing process ended with {ended}"
        return Outcome(result="failed", source=run.source, run_id=run.run_id, name=run.name, why=why)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            process.stdout.close()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(_worker.__file__))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._process


def _tidy(queue: Path) -> None:
    """Remove the folder for runs in the making, unless another import uses it."""
    try:
        (queue / STAGING).rmdir()
    except OSError:
        return
