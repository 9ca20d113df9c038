"""Runs the health rules over the journal, once for all backends, and keeps their alerts in a small journal of its own.

An alert belongs right behind the record that caused it (`Alert.cause`), so every backend gets it in the same place and
with the same sequence, whoever computed it and when. A fault in here costs alerts, never delivery.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path

import msgspec

from tracker_bridge.delivery._notices import Notices
from tracker_bridge.health import HealthConfig, Monitor
from tracker_bridge.journal import Entry, JournalReader, JournalWriter, Position, scan
from tracker_bridge.records import Alert
from tracker_bridge.rundir import RunPaths

_MOST_DISK = 8 * 1024 * 1024
_SNAPSHOT_RECORDS = 20_000
# A snapshot of the rules' memory is taken after so many records; after a crash they are judged again from there.


class AlertFeed:
    """The alerts that were kept, by the sequence of the record that caused them. One for each consumer."""

    def __init__(self, paths: RunPaths) -> None:
        self._reader = JournalReader(paths.alerts)
        self._waiting: defaultdict[int, list[Alert]] = defaultdict(list)

    def caused_by(self, sequence: int) -> list[Alert]:
        """The alerts of that record; each is given once."""
        return self._waiting.pop(sequence, []) if self._waiting else []

    def refresh(self) -> None:
        """Take in what was kept since the last call."""
        for entry in self._reader.read():
            if isinstance(entry, Entry) and isinstance(entry.record, Alert):
                self._waiting[entry.record.cause].append(entry.record)

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()


class HealthWatch:
    """Judges the records of one run. Thread-safe: whichever courier needs a record judged first does the work."""

    def __init__(self, paths: RunPaths, config: HealthConfig, run_id: str, notices: Notices) -> None:
        self._paths, self._notices = paths, notices
        self._lock = threading.Lock()
        self._broken = False
        paths.alerts.mkdir(parents=True, exist_ok=True)
        self._monitor, position = _restore(paths, config)
        self._reader = JournalReader(paths.journal, position)
        kept = [entry.record for entry in scan(paths.alerts) if isinstance(entry, Entry)]
        self._kept = {(record.cause, record.rule) for record in kept if isinstance(record, Alert)}
        begin = JournalWriter.recover if any(paths.alerts.glob("*.seg")) else JournalWriter.create
        self._writer = begin(paths.alerts, run_id, max_disk=_MOST_DISK)
        self._since_snapshot = 0

    def judge(self, sequence: int) -> None:
        """Make sure that every record up to `sequence` is judged and its alerts are kept."""
        with self._lock:
            while not self._broken and self._reader.position.sequence <= sequence:
                try:
                    if not self._judge_chunk():
                        return
                except Exception as error:
                    self._broken = True
                    self._notices.say("health", f"the rules are off for this run: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Keep the rules' memory for the next process."""
        with self._lock:
            if not self._broken:
                self._take_snapshot()
            self._writer.close()
            self._reader.close()

    def _judge_chunk(self) -> bool:
        entries = self._reader.read(max_records=2000)
        for entry in entries:
            if isinstance(entry, Entry):
                for alert in self._monitor.feed(entry.record):
                    self._keep(msgspec.structs.replace(alert, cause=entry.sequence))
        self._since_snapshot += len(entries)
        if self._since_snapshot >= _SNAPSHOT_RECORDS:
            self._take_snapshot()
        return bool(entries)

    def _keep(self, alert: Alert) -> None:
        if (alert.cause, alert.rule) not in self._kept:
            self._kept.add((alert.cause, alert.rule))
            self._writer.append(alert)
            self._notices.say("health", f"step {alert.step}: {alert.title}")

    def _take_snapshot(self) -> None:
        self._since_snapshot = 0
        kept = _Kept(self._reader.position, self._monitor.snapshot())
        temporary = self._paths.health_memory.with_suffix(f".{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.msgpack.encode(kept))
            os.replace(temporary, self._paths.health_memory)
        except OSError as error:
            self._notices.say("health", f"the rules' memory could not be saved: {error}")


class _Kept(msgspec.Struct, frozen=True):
    position: Position
    memory: bytes


def _restore(paths: RunPaths, config: HealthConfig) -> tuple[Monitor, Position]:
    try:
        kept = msgspec.msgpack.decode(Path(paths.health_memory).read_bytes(), type=_Kept)
        return Monitor.from_snapshot(kept.memory, config), kept.position
    except (OSError, msgspec.DecodeError):
        return Monitor(config), Position()
