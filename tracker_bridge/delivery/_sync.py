"""Delivery after the fact: what `tracker-bridge sync` does, and draining a journal into one given adapter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tracker_bridge.adapter import Adapter
from tracker_bridge.config import BackendConfig, RouteConfig, restore
from tracker_bridge.delivery._host import Host
from tracker_bridge.delivery._lifecycle import Lifecycle
from tracker_bridge.delivery._plan import Plan, plan_of
from tracker_bridge.delivery._process import DeliveryProcess
from tracker_bridge.journal import JournalReader
from tracker_bridge.rundir import BackendState, RunPaths, load_manifest, load_state

_LOOK = 0.1
_EXIT_GRACE = 2.0
_END_GRACE = 1.0
# Told to end early, couriers save how far they are; an adapter that hangs is killed.
_DEFAULT_TIMEOUT = 600.0


def stored_plan(paths: RunPaths) -> Plan:
    """The plan in the run's own `run.json`, with its secrets taken from the environment.

    Raises `NotARunError`, and `ConfigError` naming a secret that the environment does not hold.
    """
    return plan_of(restore(load_manifest(paths).config, dict(os.environ)), dict(os.environ))


def sync_run(
    run_dir: Path,
    *,
    plan: Plan | None = None,
    timeout: float | None = None,
    on_progress: Callable[[dict[str, BackendState]], None] | None = None,
) -> dict[str, BackendState]:
    """Deliver what is pending of one run, in a process of its own, and return each backend's state afterwards.

    `plan`: other backends than the run's own. `timeout` (seconds, default 600) bounds the whole; what is then left
    stays pending. `on_progress` gets the states ten times a second; what it raises ends the delivery and is raised
    again. Raises `NotARunError` and `ConfigError`.
    """
    paths = RunPaths(run_dir)
    plan = plan or stored_plan(paths)
    seconds = _DEFAULT_TIMEOUT if timeout is None else timeout
    plan = msgspec.structs.replace(plan, close_timeout=seconds)
    names = [backend.name for backend in plan.backends]
    stored = load_manifest(paths).config.get("cwd")
    process = DeliveryProcess(paths.root, plan, cwd=Path(stored) if stored else None, follow=False)
    deadline = time.monotonic() + seconds + _EXIT_GRACE
    try:
        while not process.wait(_LOOK) and time.monotonic() < deadline:
            if on_progress is not None:
                on_progress({name: load_state(paths, name) for name in names})
    finally:
        if process.is_alive():
            process.end(0)
            if not process.wait(_END_GRACE):
                process.kill()
    return {name: load_state(paths, name) for name in names}


def pending_records(paths: RunPaths, state: BackendState) -> int:
    """How many records of the journal the backend has not had yet."""
    with JournalReader(paths.journal) as reader:
        return max(0, reader.end() - state.position.sequence)


def deliver_once(
    run_dir: Path,
    *,
    backend: str,
    adapter: Adapter[Any],
    kind: str = "custom",
    route: RouteConfig | None = None,
    group_by: str = "parameter",
    close: bool = True,
    timeout: float = 60.0,
) -> BackendState:
    """Drain all that the run's journal holds into `adapter`, on this process, and return the backend's state.

    `close`: a run of which neither the journal nor `run.json` knows the end is closed as `crashed`; otherwise it stays
    open in the tracker.
    """
    paths = RunPaths(run_dir)
    lifecycle = Lifecycle()
    lifecycle.end("crashed" if close else None)
    lifecycle.limit(timeout)
    config = BackendConfig(name=backend, adapter=kind, route=route or RouteConfig())
    plan = Plan(backends=(config,), group_by=group_by, close_timeout=timeout)
    Host(paths, plan, lifecycle).serve(watch=None, adapters={backend: adapter})
    return load_state(paths, backend)
