"""Hosts the couriers of one run: starts them, notices the end (or the death) of the training process, stops in time.

It runs in the delivery process, or on a thread of the script in thread mode. It imports no tracker itself.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tracker_bridge.adapter import Adapter
from tracker_bridge.config import BackendConfig
from tracker_bridge.delivery._courier import Assignment, Courier
from tracker_bridge.delivery._death import Death
from tracker_bridge.delivery._gone import is_gone
from tracker_bridge.delivery._health import HealthWatch
from tracker_bridge.delivery._lifecycle import Lifecycle
from tracker_bridge.delivery._notices import Notices
from tracker_bridge.delivery._plan import Plan, make_adapter, make_route
from tracker_bridge.journal import JournalReader
from tracker_bridge.rundir import (
    FileLock,
    Manifest,
    NotARunError,
    Owner,
    RunPaths,
    Status,
    load_manifest,
    load_state,
    save_state,
    update_manifest,
)

WATCH = 0.5
"""Seconds between two looks at the training process."""

_ON_REQUEST = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
# Somebody asked the script to end; any other signal, SIGKILL (out of memory) among them, is a crash.

_ABANDON = 0.25
# A courier gets that much after the deadline to return by itself; then its adapter hangs and is left behind.


class Host:
    """Delivers one run. `serve` returns True if every courier came to its end."""

    def __init__(self, paths: RunPaths, plan: Plan, lifecycle: Lifecycle, death: Death | None = None) -> None:
        self._death = death
        self._paths = paths
        self._plan = plan
        self._lifecycle = lifecycle
        self._notices = Notices(paths.notices, plan.scrubber)

    def serve(self, *, watch: Owner | None, adapters: Mapping[str, Adapter[Any]] | None = None) -> bool:
        """Deliver until the run has ended and all is delivered, or the time is over.

        `watch`: the process that appends; when it is gone without having ended the run, the run has crashed.
        `adapters`: ready-made ones by backend name, instead of those that the plan names.
        Raises `LockBusyError` if somebody else delivers to the same backends for longer than the `close_timeout`.
        """
        with contextlib.ExitStack() as locks:
            for path in self._locks():
                lock = FileLock(path)
                lock.acquire(timeout=self._plan.close_timeout)
                locks.callback(lock.release)
            return self._serve(watch, adapters or {})

    def _locks(self) -> list[Path]:
        if not self._plan.beside:
            return [self._paths.delivery_lock]
        names = sorted(backend.name for backend in self._plan.backends)
        for name in names:
            self._paths.backend(name).mkdir(parents=True, exist_ok=True)
        return [self._paths.replay_lock(name) for name in names]

    def _serve(self, watch: Owner | None, adapters: Mapping[str, Adapter[Any]]) -> bool:
        health = self._health_watch()
        try:
            return self._host(watch, adapters, health)
        finally:
            if health is not None:
                health.close()

    def _health_watch(self) -> HealthWatch | None:
        if self._plan.health is None:
            return None
        try:
            return HealthWatch(self._paths, self._plan.health, load_manifest(self._paths).run_id, self._notices)
        except Exception as error:
            self._notices.say("health", f"the rules are off for this run: {type(error).__name__}: {error}")
            return None

    def _host(self, watch: Owner | None, adapters: Mapping[str, Adapter[Any]], health: HealthWatch | None) -> bool:
        threads = []
        for backend in self._plan.backends:
            courier = self._courier(backend, adapters.get(backend.name), health)
            if courier is not None:
                name = f"tracker_bridge-{backend.name}"
                threads.append(threading.Thread(target=courier.run, name=name, daemon=True))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if watch is not None and not self._lifecycle.ended and not watch.is_alive():
                self._vanished(watch)
            if self._lifecycle.expired:
                self._join(threads, _ABANDON)
                break
            if self._lifecycle.ended and is_gone(self._paths):
                # Nothing will be appended, and an adapter that keeps files there will not find them again.
                self._lifecycle.stop_retrying()
            self._join(threads, WATCH)
        if watch is not None and not threads:
            self._await_end(watch)
        return not any(thread.is_alive() for thread in threads)

    def _courier(
        self, backend: BackendConfig, adapter: Adapter[Any] | None, health: HealthWatch | None
    ) -> Courier | None:
        try:
            assignment = Assignment(
                paths=self._paths,
                backend=backend.name,
                kind=backend.adapter,
                adapter=adapter or make_adapter(backend),
                route=make_route(backend.route, self._plan.group_by),
                scrub=self._plan.scrubber,
            )
            return Courier(assignment, self._lifecycle, self._notices, health)
        except Exception as error:
            text = self._plan.scrubber(str(error))
            self._notices.say(backend.name, text)
            state = load_state(self._paths, backend.name)
            self._paths.backend(backend.name).mkdir(parents=True, exist_ok=True)
            down = msgspec.structs.replace(state, health="down", last_error=text, last_error_ns=time.time_ns())
            save_state(self._paths, backend.name, down)
            return None

    def _vanished(self, watch: Owner) -> None:
        """The training process is gone. If it had ended the run, the journal says how; otherwise it crashed."""
        ended_by = self._death.signal() if self._death is not None else None
        status: Status = "killed" if ended_by in _ON_REQUEST else "crashed"
        end_for(watch, self._paths, self._lifecycle, status)
        self._lifecycle.limit(self._plan.close_timeout)

    def _await_end(self, watch: Owner) -> None:
        while not self._lifecycle.ended and not self._lifecycle.expired:
            if not watch.is_alive():
                self._vanished(watch)
            self._lifecycle.wait_for_records(WATCH)

    def _join(self, threads: list[threading.Thread], seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def end_for(owner: Owner | None, paths: RunPaths, lifecycle: Lifecycle, status: Status) -> None:
    """End delivery for a process that is gone: its run ends as `status`, if it had not ended and nobody continues it.

    What cannot be marked, in a directory that is gone or full, is delivered all the same.
    """
    with contextlib.suppress(NotARunError, OSError):
        now = end_as(status, owner, paths)
        if now.status == "running":
            # The attempt has a delivery of its own, which waits for this one: a tracker that is down is left to it.
            hand_over(paths, lifecycle)
            lifecycle.stop_retrying()
            return
    lifecycle.end(status)


def hand_over(paths: RunPaths, lifecycle: Lifecycle) -> None:
    """End delivery of a journal that goes on with what is there now: if it grows as fast it has no end."""
    with JournalReader(paths.journal) as reader:
        lifecycle.end(None, until=reader.end())


def end_as(status: Status, owner: Owner | None, paths: RunPaths) -> Manifest:
    """Mark the run of `owner`, which is gone, as `crashed` or `killed`; the manifest as it then is.

    One that had ended keeps its status, and one that is another process' by now stays as it is.
    Raises `NotARunError` and `OSError`.
    """

    def change(manifest: Manifest) -> Manifest:
        if manifest.status != "running" or manifest.owner != owner:
            return manifest
        return msgspec.structs.replace(manifest, status=status, finished_ns=time.time_ns())

    return update_manifest(paths, change)
