"""One courier drains the journal into one adapter: reads, translates, batches, writes, retries, moves the cursor.

It runs on a thread of its own, and nothing that its adapter does (raise, hang, refuse) touches another courier.
A batch is either stored, or retried, or refused item by item with a counted reason; it is never skipped.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tracker_bridge.adapter import Adapter, Batch, Item, Rejected, RetryLater, RunInfo
from tracker_bridge.delivery._backoff import pause
from tracker_bridge.delivery._batch import batches, weight
from tracker_bridge.delivery._cursor import Cursor, load_cursor, save_cursor, save_definitions
from tracker_bridge.delivery._health import AlertFeed, HealthWatch
from tracker_bridge.delivery._lifecycle import Lifecycle
from tracker_bridge.delivery._notices import Notices
from tracker_bridge.delivery._route import Route
from tracker_bridge.delivery._translate import Translator
from tracker_bridge.journal import Gap, JournalReader
from tracker_bridge.records import RunFinished, RunStarted
from tracker_bridge.rundir import (
    BackendIdentity,
    Health,
    Manifest,
    NotARunError,
    RunPaths,
    load_manifest,
    load_state,
    save_state,
    update_manifest,
)

IDLE = 1.0
"""Seconds between two looks at an idle journal; also what a batch may wait to grow."""

_BUG_TRIES = 4
# An exception that is neither RetryLater nor Rejected is tried again that often before its batch is divided.
_BUGS_IN_A_ROW = 8
# So many single items failing so with no success between: it is the adapter or its SDK, not the items.
_DOWN_AFTER = 5
_LAST_PAUSE = 5.0
# While the script waits in `close`, the time that is left is better spent trying than waiting.
_REJECTED_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 32


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one courier has to do."""

    paths: RunPaths
    backend: str
    kind: str
    adapter: Adapter[Any]
    route: Route
    scrub: Callable[[str], str]


class OutOfTimeError(Exception):
    """The time allowed for delivery is over; what is left stays in the journal."""


class Courier:
    """Delivers for one backend. `run()` returns when all is delivered and closed, or the time is over."""

    def __init__(
        self, assignment: Assignment, lifecycle: Lifecycle, notices: Notices, health: HealthWatch | None
    ) -> None:
        self._do = assignment
        self._health = health
        self._alerts = AlertFeed(assignment.paths)
        self._lifecycle = lifecycle
        self._notices = notices
        self._folder = assignment.paths.backend(assignment.backend)
        self._folder.mkdir(parents=True, exist_ok=True)
        cursor, definitions = load_cursor(self._folder)
        self._translator = Translator(
            assignment.adapter.capabilities, assignment.route, assignment.paths.root, definitions, cursor.progress
        )
        self._reader = JournalReader(assignment.paths.journal, cursor.position)
        self._delivered = cursor.position
        self._state = load_state(assignment.paths, assignment.backend)
        self._dropped = Counter(self._state.dropped)
        self._sent, self._points = self._state.sent, self._state.points
        self._ended = cursor.ended
        self._attempt = cursor.attempt or max(1, self._state.closed_attempt)
        self._bugs_in_a_row = 0
        self._refused_later: Counter[str] = Counter()
        self._open = False
        points = assignment.adapter.capabilities.max_points
        self._chunk = max(64 * 1024, min(8 * 1024 * 1024, _CHUNK_BYTES * points))

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._do.backend

    def run(self) -> None:
        """Deliver until the end. Never raises."""
        try:
            if self._nothing_to_do():
                return
            self._open_adapter()
            self._deliver()
            self._close_adapter()
        except OutOfTimeError:
            self._save_state(self._state.health)
        except Exception as error:
            self._trouble("down", error)
        finally:
            self._reader.close()
            self._alerts.close()

    def _nothing_to_do(self) -> bool:
        return (
            self._state.health == "closed"
            and self._lifecycle.ended
            and self._reader.position.sequence >= self._reader.end()
            and (self._lifecycle.until is not None or self._state.closed_attempt >= self._known_attempt())
        )

    def _known_attempt(self) -> int:
        try:
            return load_manifest(self._do.paths).attempt
        except NotARunError:
            return 0

    # --- the three phases

    def _open_adapter(self) -> None:
        self._save_state("opening")
        self._persistently(self._try_open)
        self._save_state("healthy")

    def _try_open(self) -> None:
        paths, backend = self._do.paths, self._do.backend
        manifest = update_manifest(paths, lambda now: now)
        opened = self._do.adapter.open(self._run_info(manifest))
        identity = BackendIdentity(self._do.kind, dict(opened.ids), opened.url)
        update_manifest(paths, lambda now: _with_backend(now, backend, identity))
        self._open = True

    def _run_info(self, manifest: Manifest) -> RunInfo:
        known = manifest.backends.get(self._do.backend)
        return RunInfo(
            run_id=manifest.run_id,
            backend=self._do.backend,
            project=manifest.project,
            experiment=manifest.experiment,
            name=manifest.name,
            dir=self._do.paths.root,
            private_dir=self._folder,
            attempt=manifest.attempt,
            started_ns=manifest.created_ns,
            params=self._translator.definitions.params,
            tags=self._translator.definitions.tags,
            ids=dict(known.ids) if known else {},
            cwd=Path(str(manifest.config.get("cwd", ""))),
            provenance=manifest.provenance,
            first_of_kind=_is_first(manifest, self._do.backend, self._do.kind),
        )

    def _deliver(self) -> None:
        while True:
            ended = self._lifecycle.ended
            if self._lifecycle.until is not None and self._reader.position.sequence >= self._lifecycle.until:
                return
            if self._deliver_chunk():
                if not ended:
                    self._lifecycle.wait_for_records(IDLE)
            elif ended:
                return
            else:
                self._lifecycle.wait_for_records(IDLE)
            if self._lifecycle.expired:
                raise OutOfTimeError

    def _close_adapter(self) -> None:
        status, attempt = self._end_to_tell()
        self._persistently(lambda: self._do.adapter.close(status))
        self._note_refused()
        self._open = False
        if status is not None:
            self._state = msgspec.structs.replace(self._state, closed_attempt=attempt)
            self._save_state("closed")
        else:
            self._save_state("healthy")

    def _end_to_tell(self) -> tuple[str | None, int]:
        """The status with which the run has ended (None: it goes on, or nobody knows), and the attempt that it ends.

        The end that was read is the run's if no later attempt has begun. Where an attempt began and how it ended the
        journal may have lost (`max_disk`, a full disk, damage): `run.json` knows both, and is asked once everything is
        delivered. What it says then of a run that is delivered up to some place only may lie behind that place.
        """
        try:
            manifest = load_manifest(self._do.paths)
        except NotARunError:
            return self._ended or self._lifecycle.fallback_status, self._attempt
        if self._ended is not None and manifest.attempt <= self._attempt:
            return self._ended, self._attempt
        if self._lifecycle.until is None and manifest.status != "running":
            return manifest.status, max(manifest.attempt, self._attempt)
        if manifest.status == "running" and manifest.owner is not None and manifest.owner.is_alive():
            return None, self._attempt  # a later attempt, which began while this one was delivered
        return self._lifecycle.fallback_status, self._attempt

    # --- one chunk of the journal

    def _deliver_chunk(self) -> bool:
        """Deliver what one read of the journal holds; False if it held nothing."""
        entries = self._reader.read(max_bytes=self._chunk)
        if not entries:
            return False
        if self._health is not None:
            self._health.judge(entries[-1].sequence)
        self._alerts.refresh()
        count = 0
        items: list[Item] = []
        for entry in entries:
            if isinstance(entry, Gap):
                self._dropped[entry.reason] += entry.count
                self._notices.say(self._do.backend, f"{entry.count} records are gone ({entry.reason})")
                self._ended = None  # another attempt may have begun in it
                continue
            count += 1
            if isinstance(entry.record, RunFinished):
                self._ended = entry.record.status
            elif isinstance(entry.record, RunStarted):
                self._ended = None
                self._attempt = entry.record.attempt
            else:
                items.extend(self._translator(entry.sequence, entry.record))
            for alert in self._alerts.caused_by(entry.sequence):
                items.extend(self._translator(entry.sequence, alert))
        for batch in batches(items, self._do.adapter.capabilities, self._translator.take_renamed()):
            self._write(batch)
        if items:
            self._persistently(self._do.adapter.flush)
        self._sent += count
        self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        self._delivered = self._reader.position
        try:
            if self._translator.definitions_changed:
                save_definitions(self._folder, self._translator.definitions)
                self._translator.definitions_changed = False
            save_cursor(self._folder, Cursor(self._delivered, self._translator.progress, self._ended, self._attempt))
        except OSError as error:
            # Delivery goes on; at worst this chunk is sent again after a crash.
            self._notices.say(self._do.backend, f"the cursor could not be saved: {error}")
        self._save_state("healthy")

    # --- writing with all that can go wrong

    def _write(self, batch: Batch) -> None:
        bugs = 0
        attempt = 0
        while True:
            try:
                self._do.adapter.write(batch)
            except Rejected as refusal:
                self._refused(batch, refusal)
                return
            except RetryLater as later:
                attempt += 1
                self._wait_after(later, attempt)
            except Exception as error:
                attempt += 1
                bugs += 1
                if bugs >= _BUG_TRIES and self._bugs_in_a_row < _BUGS_IN_A_ROW:
                    self._divide(batch, error)
                    return
                self._wait_after(error, attempt)
                if bugs == _BUG_TRIES - 1:
                    self._reopen()
            else:
                self._stored(batch.items)
                return

    def _refused(self, batch: Batch, refusal: Rejected) -> None:
        refused = set(map(id, refusal.items))
        self._stored(tuple(item for item in batch.items if id(item) not in refused))
        if len(refusal.items) > 1:
            middle = len(refusal.items) // 2
            self._write(Batch(refusal.items[:middle], batch.renamed))
            self._write(Batch(refusal.items[middle:], batch.renamed))
        elif refusal.items:
            self._drop(refusal.items[0], refusal.reason)

    def _divide(self, batch: Batch, error: Exception) -> None:
        if len(batch.items) > 1:
            middle = len(batch.items) // 2
            self._write(Batch(batch.items[:middle], batch.renamed))
            self._write(Batch(batch.items[middle:], batch.renamed))
        else:
            self._bugs_in_a_row += 1
            self._drop(batch.items[0], f"adapter error: {type(error).__name__}: {error}")

    def _stored(self, items: tuple[Item, ...]) -> None:
        if items:
            self._bugs_in_a_row = 0
            self._points += sum(map(weight, items))
            if self._state.health in ("retrying", "down"):
                self._notices.forget(self._do.backend)
                self._save_state("healthy")

    def _drop(self, item: Item, reason: str) -> None:
        reason = self._do.scrub(reason)
        self._dropped[_short(reason)] += weight(item)
        self._notices.say(self._do.backend, f"the tracker refused a record: {reason}")
        path = self._do.paths.rejected(self._do.backend)
        try:
            if not path.exists() or path.stat().st_size < _REJECTED_BYTES:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"reason": reason, **_plain(item)}, default=str) + "\n")
        except OSError as error:
            self._notices.say(self._do.backend, f"a refused record could not be kept: {error}")

    def _reopen(self) -> None:
        """Give the adapter a fresh start: its SDK may have lost its own process."""
        try:
            self._do.adapter.close(None)
        except Exception as error:
            self._notices.say(self._do.backend, f"could not be closed before opening it again: {_text(error)}")
        self._persistently(self._try_open)

    def _persistently(self, action: Callable[[], object]) -> None:
        """Run `action` until it succeeds or the time is over."""
        attempt = 0
        while True:
            try:
                action()
            except Exception as error:
                attempt += 1
                self._wait_after(error, attempt)
            else:
                return

    def _wait_after(self, error: Exception, attempt: int) -> None:
        self._trouble("down" if attempt >= _DOWN_AFTER else "retrying", error)
        after = error.after if isinstance(error, RetryLater) else None
        seconds = pause(attempt, after)
        if after is None and self._lifecycle.ended:
            seconds = min(seconds, _LAST_PAUSE)
        if self._lifecycle.wait_before_retry(seconds):
            raise OutOfTimeError

    def _trouble(self, health: Health, error: Exception) -> None:
        text = self._do.scrub(error.reason if isinstance(error, RetryLater) else _text(error))
        self._state = msgspec.structs.replace(self._state, last_error=text, last_error_ns=time.time_ns())
        self._notices.say(self._do.backend, f"{text} (kept on disk, trying again)")
        self._save_state(health)

    def _note_refused(self) -> None:
        """Take in what the tracker refused behind the adapter's back since the last look."""
        try:
            refused = Counter(self._do.adapter.refused())
        except Exception as error:
            self._notices.say(self._do.backend, f"what was refused could not be asked: {_text(error)}")
            return
        if any(refused[reason] < count for reason, count in self._refused_later.items()):
            self._refused_later = Counter()  # opened anew: it counts from nothing again
        for reason, count in (refused - self._refused_later).items():
            self._dropped[_short(self._do.scrub(reason))] += count
            self._notices.say(self._do.backend, f"the tracker refused values afterwards: {self._do.scrub(reason)}")
        self._refused_later = refused

    def _save_state(self, health: Health) -> None:
        if self._open:
            self._note_refused()
        dropped = self._dropped + self._translator.dropped
        self._state = msgspec.structs.replace(
            self._state,
            position=self._delivered,
            health=health,
            sent=self._sent,
            points=self._points,
            dropped=dict(dropped),
            updated_ns=time.time_ns(),
        )
        try:
            save_state(self._do.paths, self._do.backend, self._state)
        except OSError as error:
            self._notices.say(self._do.backend, f"the state could not be saved: {error}")


def _is_first(manifest: Manifest, backend: str, kind: str) -> bool:
    """Whether no backend of this kind stands before this one, among those configured and then those of replays."""
    configured = manifest.config.get("backends")
    kinds = {name: one.get("adapter") for name, one in configured.items()} if isinstance(configured, dict) else {}
    for name, known in manifest.backends.items():
        kinds.setdefault(name, known.adapter)
    return next((name for name, one in kinds.items() if one == kind), backend) == backend


def _with_backend(manifest: Manifest, name: str, identity: BackendIdentity) -> Manifest:
    return msgspec.structs.replace(manifest, backends={**manifest.backends, name: identity})


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _short(reason: str) -> str:
    return reason if len(reason) <= 120 else reason[:117] + "..."


def _plain(item: Item) -> dict[str, Any]:
    fields = {name: getattr(item, name) for name in item.__slots__}
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in fields.items()}
    return {"kind": type(item).__name__, **plain}
