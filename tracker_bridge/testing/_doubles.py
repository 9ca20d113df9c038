"""Adapters for tests: one that records what it gets, and wrappers that make any adapter fail or slow."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from tracker_bridge.adapter import Adapter, Batch, Capabilities, Item, Opened, Options, RunInfo

Method = Literal["open", "write", "flush", "close"]


class NoOptions(Options, frozen=True, kw_only=True):
    """No options."""


class RecordingAdapter(Adapter[NoOptions]):
    """Keeps what it is told: `opened` (each `RunInfo`), `batches`, `flushes` (a count), `closed` (each status)."""

    options_type = NoOptions
    capabilities = Capabilities(step_type="float", media=frozenset({"text", "histogram", "artifact", "image"}))

    def __init__(self, options: NoOptions | None = None, *, capabilities: Capabilities | None = None) -> None:
        super().__init__(options or NoOptions())
        if capabilities is not None:
            self.capabilities = capabilities  # type: ignore[misc]
        self.opened: list[RunInfo] = []
        self.batches: list[Batch] = []
        self.flushes = 0
        self.closed: list[str | None] = []

    @property
    def items(self) -> list[Item]:
        """All items of all batches."""
        return [item for batch in self.batches for item in batch.items]

    def open(self, run: RunInfo) -> Opened:
        """Note it."""
        self.opened.append(run)
        return Opened({"run_id": run.run_id})

    def write(self, batch: Batch) -> None:
        """Keep it."""
        self.batches.append(batch)

    def flush(self) -> None:
        """Count it."""
        self.flushes += 1

    def close(self, status: str | None) -> None:
        """Note it."""
        self.closed.append(status)


class _Wrapper(Adapter[Any]):
    """Hands everything to `inner`."""

    options_type = Options
    capabilities = Capabilities()

    def __init__(self, inner: Adapter[Any]) -> None:
        super().__init__(inner.options)
        self.inner = inner
        self.capabilities = inner.capabilities  # type: ignore[misc]

    def before(self, method: Method) -> None:
        """Runs before each call of `inner`."""

    def open(self, run: RunInfo) -> Opened:
        """As `inner`."""
        self.before("open")
        return self.inner.open(run)

    def write(self, batch: Batch) -> None:
        """As `inner`."""
        self.before("write")
        self.inner.write(batch)

    def flush(self) -> None:
        """As `inner`."""
        self.before("flush")
        self.inner.flush()

    def close(self, status: str | None) -> None:
        """As `inner`."""
        self.before("close")
        self.inner.close(status)


class FaultyAdapter(_Wrapper):
    """Raises what `faults` says, one entry for each call of the method (None: no fault); works when they are used up.

    `calls` counts the calls of each method, failed ones included.
    """

    def __init__(self, inner: Adapter[Any], faults: Mapping[Method, Iterable[Exception | None]]) -> None:
        super().__init__(inner)
        self._faults: dict[Method, Iterator[Exception | None]] = {name: iter(each) for name, each in faults.items()}
        self.calls: dict[Method, int] = {"open": 0, "write": 0, "flush": 0, "close": 0}

    def before(self, method: Method) -> None:
        """Raise the next fault of the method."""
        self.calls[method] += 1
        fault = next(self._faults.get(method, iter(())), None)
        if fault is not None:
            raise fault


class SlowAdapter(_Wrapper):
    """Waits `seconds` before each call of `methods`, or until `release` is set (then it never waits again)."""

    def __init__(self, inner: Adapter[Any], seconds: float, methods: Iterable[Method] = ("write",)) -> None:
        super().__init__(inner)
        self._seconds = seconds
        self._methods = frozenset(methods)
        self.release = threading.Event()

    def before(self, method: Method) -> None:
        """Wait."""
        if method in self._methods:
            self.release.wait(self._seconds)
