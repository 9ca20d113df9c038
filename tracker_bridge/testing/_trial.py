"""One run on disk and its delivery into an adapter: the real journal and the real courier, without a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracker_bridge.adapter import Adapter
from tracker_bridge.config import RouteConfig
from tracker_bridge.delivery import deliver_once, pending_records
from tracker_bridge.journal import JournalWriter
from tracker_bridge.records import AnyRecord, RunStarted
from tracker_bridge.rundir import BackendState, Manifest, RunPaths, load_manifest, write_json

BACKEND = "backend"


class Trial:
    """A run in `folder`, delivered by `make_adapter()`'s adapters. `start_ns` is when it began."""

    def __init__(
        self,
        folder: Path,
        make_adapter: Callable[[], Adapter[Any]],
        *,
        run_id: str = "trial-1",
        project: str | None = "conformance",
        experiment: str | None = "suite",
        name: str | None = "a trial",
        provenance: Mapping[str, Any] | None = None,
        start_ns: int = 1_750_000_000_000_000_000,
    ) -> None:
        self.paths = RunPaths(folder / run_id)
        self.start_ns = start_ns
        self._make_adapter = make_adapter
        self._run_id = run_id
        self._provenance = dict(provenance or {})
        self._attempt = 0
        self.paths.backends.mkdir(parents=True)
        manifest = Manifest(
            run_id=run_id,
            project=project,
            experiment=experiment,
            name=name,
            created_ns=start_ns,
            provenance=self._provenance,
        )
        write_json(self.paths.manifest, manifest)

    def append(self, *records: AnyRecord) -> None:
        """Append records as one attempt (a process that begins, logs and goes) of the run."""
        self._attempt += 1
        begin = JournalWriter.create if self._attempt == 1 else JournalWriter.recover
        with begin(self.paths.journal, self._run_id) as journal:
            journal.append(RunStarted(self.start_ns, self._run_id, self._attempt, 1, "host", self._provenance))
            for record in records:
                journal.append(record)
            if journal.dropped:
                raise AssertionError(f"the journal refused records: {journal.dropped}")

    def deliver(
        self,
        *,
        close: bool = True,
        adapter: Adapter[Any] | None = None,
        route: RouteConfig | None = None,
        timeout: float = 100.0,
    ) -> BackendState:
        """Deliver what is pending with a new adapter (or the given one). Raises `AssertionError` if anything is left.

        `close`: a run without an end in the journal is closed as `crashed`; otherwise it is left open.
        """
        adapter = adapter or self._make_adapter()
        root = self.paths.root
        state = deliver_once(root, backend=BACKEND, adapter=adapter, route=route, close=close, timeout=timeout)
        pending = pending_records(self.paths, state)
        if pending or state.health not in ("closed", "healthy"):
            raise AssertionError(f"delivery is {state.health}, {pending} records are left: {state.last_error}")
        return state

    def forget_progress(self) -> None:
        """Lose the cursor, as a crash does between a write and the note of it: everything is sent again."""
        for name in ("cursor.msgpack", "definitions.msgpack", "state.json"):
            (self.paths.backend(BACKEND) / name).unlink(missing_ok=True)

    @property
    def ids(self) -> Mapping[str, str]:
        """What the adapter's `open` returned, from `run.json`."""
        return load_manifest(self.paths).backends[BACKEND].ids
