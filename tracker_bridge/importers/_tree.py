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
from pathlib import Path

import msgspec

from tracker_bridge.importers import _worker
from tracker_bridge.importers._journal import Outcome, import_staged, outcome_of
from tracker_bridge.importers._model import ForeignRun
from tracker_bridge.importers._registry import discover
from tracker_bridge.importers._staging import Staging

_MOST_WORKERS = 4
NEXT_WORKER = 1.0
"""Seconds of work until another process joins: its start takes half of that, and who knows how much is left."""


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
    it stopped. `workers`: processes, this one included (default: the cores, 4 at most); they join while work is left.
    `salvage`: import what is sound of damaged files instead of refusing the run. `file_roots`: folders besides `path`
    from which files that a run names may be copied. `on_progress` gets each outcome, never two at once, on any thread.

    Raises what `discover` raises; whatever is wrong with one run is in the report.
    """
    queue = Path(queue_dir).absolute()
    roots = tuple(str(Path(root)) for root in file_roots)
    found = (replace(run, file_roots=(*run.file_roots, *roots)) for run in discover(kind, path))
    count = min(_MOST_WORKERS, os.cpu_count() or 1) if workers is None else max(1, workers)
    outcomes = _imported(enumerate(found), queue, count, salvage, on_progress)
    ordered = [outcome for _, outcome in sorted(outcomes, key=lambda pair: pair[0])]
    return ImportReport(
        imported=tuple(outcome for outcome in ordered if outcome.result == "imported"),
        skipped=tuple(outcome for outcome in ordered if outcome.result == "skipped"),
        failed=tuple(outcome for outcome in ordered if outcome.result == "failed"),
    )


def _imported(
    runs: Iterable[tuple[int, ForeignRun]],
    queue: Path,
    count: int,
    salvage: bool,
    on_progress: Callable[[Outcome], None] | None,
) -> list[tuple[int, Outcome]]:
    """This process begins at once; others join it one by one while there is work, so few small runs start none."""
    outcomes: list[tuple[int, Outcome]] = []
    source, source_lock, report_lock = iter(runs), threading.Lock(), threading.Lock()
    stop = threading.Event()

    def work(import_one: Callable[[ForeignRun], Outcome]) -> None:
        try:
            while not stop.is_set():
                with source_lock:
                    item = next(source, None)
                if item is None:
                    stop.set()  # the others end with the run that they are at
                    return
                number, run = item
                outcome = import_one(run)
                with report_lock:
                    outcomes.append((number, outcome))
                    if on_progress is not None:
                        on_progress(outcome)
        except BaseException:
            stop.set()
            raise

    def join_in(number_of_worker: int) -> None:
        if not stop.wait(number_of_worker * NEXT_WORKER):
            with contextlib.closing(_Worker()) as worker:
                work(lambda run: worker.run(run, queue, salvage))

    with (
        ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="tracker-bridge-import") as pool,
        Staging(queue) as staging,
    ):
        try:
            others = [pool.submit(join_in, number) for number in range(1, count)]
            work(lambda run: import_staged(run, staging, salvage=salvage))
            for other in others:
                other.result()
        finally:
            stop.set()
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
            process.stdin.write(_worker.pack(request) + b"\n")
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
        return outcome_of(run, "failed", why=why)

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
