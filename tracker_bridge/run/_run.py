"""`Run`: what a script logs to. Each call makes one record and appends it to the journal; nothing else happens here.

On the training thread: no tracker, no network, no waiting, no device synchronisation. Misuse raises; faults do not.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from tracker_bridge.config import GradientsConfig, hide_secrets, scrub
from tracker_bridge.delivery import is_gone
from tracker_bridge.journal import Entry, JournalReader, JournalWriter
from tracker_bridge.records import (
    Alert,
    AnyRecord,
    Artifact,
    Histogram,
    Metrics,
    Params,
    RunFinished,
    Step,
    Tags,
    Text,
    encodable,
    encode,
)
from tracker_bridge.run import _exit
from tracker_bridge.run._channel import Channel, NoChannel, ThreadChannel, wait_until
from tracker_bridge.run._pace import LOGGED_AND_DUE, Pace
from tracker_bridge.run._pending import PendingRecords
from tracker_bridge.run._plain import plain_params, plain_tags
from tracker_bridge.run._result import REMOVED, BackendDelivery, Delivery, sync_command
from tracker_bridge.run._values import LARGEST_STEP, as_scalars, as_step, as_time_ns, check_names
from tracker_bridge.run._watch import Tables, watch
from tracker_bridge.rundir import Manifest, NotARunError, RunPaths, load_manifest, load_state, update_manifest

if TYPE_CHECKING:
    import torch

    from tracker_bridge.collector import GradientNormCollector

STATUSES = ("finished", "failed", "killed", "crashed")

_ARRIVAL = 0.1
"""Seconds that `close` waits at least for values on their way, whatever its timeout: they mostly take milliseconds."""
_LOOK_NS = 1_000_000_000
# Once in this time a logging call looks after delivery and shows what it has to say.


class Run:
    """One training run. Made by `tracker_bridge.init`; safe to use from several threads.

    As a context manager it closes itself: `finished`, or `failed` after an exception and `killed` after Ctrl-C, which
    are raised again.
    """

    def __init__(
        self,
        run_id: str,
        *,
        paths: RunPaths | None,
        journal: JournalWriter | None,
        channel: Channel,
        backends: tuple[str, ...],
        gradients: GradientsConfig | None,
        close_timeout: float,
        last_step: Step,
        first_table: int = 0,
        next_collector_step: int | None = None,
        secrets: frozenset[str] = frozenset(),
    ) -> None:
        self._id = run_id
        self._paths = paths
        self._journal = journal
        self._write = _nowhere if journal is None else journal.append_encoded
        # What writes a record in one step, if it can; else `_write` does.
        self._shortcut = None if journal is None else journal.tail.append_record
        self._channel = channel
        self._backends = backends
        self._gradients = gradients
        self._close_timeout = close_timeout
        # Reentrant, because a signal handler may log while its thread takes a step.
        self._lock = threading.RLock()
        self._pending = PendingRecords(self._append, self._lost)
        self._collectors: list[GradientNormCollector] = []
        self._kinds: set[str] = set()
        self._tables = Tables(first_table)
        self._next_collector_step = next_collector_step
        self._secrets = secrets
        self._closing = self._closed = self._marked = False
        self._delivery: Delivery | None = None
        self._on_alert: list[Callable[[Alert], object]] = []
        self._callback_faults: Counter[str] = Counter()
        self._unwritten: Counter[str] = Counter()
        self._alerts: JournalReader | None = None
        self._shown = 0
        now = time.time_ns()
        self._pace = Pace(last_step, now, now + _LOOK_NS, None if journal is None else journal.tail)
        self._metrics = self._pace.metrics
        self._said: set[str] = set()

    # --- identity

    @property
    def id(self) -> str:
        """The run's id, unique in its queue directory."""
        return self._id

    @property
    def dir(self) -> Path | None:
        """The run directory; None on a rank that does not write, or if no directory could be made."""
        return self._paths.root if self._paths else None

    @property
    def urls(self) -> dict[str, str]:
        """Where to look at the run, for each backend that has opened so far. Does not wait; see `wait_until_open`."""
        if self._paths is None:
            return {}
        try:
            manifest = load_manifest(self._paths)
        except NotARunError:  # somebody removed the directory
            return {}
        return {name: one.url for name, one in manifest.backends.items() if one.url and name in self._backends}

    def wait_until_open(self, timeout: float = 10.0) -> dict[str, str]:
        """Wait at most `timeout` seconds until each backend has opened or failed to; returns `urls`."""
        if self._paths is not None:
            paths = self._paths
            wait_until(lambda: all(load_state(paths, name).health != "opening" for name in self._backends), timeout)
        return self.urls

    # --- logging

    def log_metrics(
        self, data: Mapping[str, Any], step: Any = None, *, timestamp: datetime | float | None = None
    ) -> None:
        """Log scalars of one step: whatever `float()` takes, 0-d arrays and tensors on any device.

        `step`: an integer, or a fraction; None means one more than this run's last step. A tensor on an accelerator
        is copied without waiting and completed at a later call. Raises `TypeError`/`ValueError` naming the key.
        """
        if self._metrics is not None and timestamp is None and (done := self._metrics(data, step)):
            if done == LOGGED_AND_DUE:
                self._look(time.time_ns())
            return
        now = time.time_ns()
        # A copy, for another thread may change the script's own mapping meanwhile.
        values: dict[str, Any] = data.copy() if type(data) is dict else dict(check_names(data, "log_metrics"))
        waiting: dict[str, Any] | None = None
        for name, value in values.items():
            if type(value) is not float or type(name) is not str:
                values, waiting = as_scalars(values)
                break
        logged = now if timestamp is None else as_time_ns(timestamp)
        if type(step) is int and -LARGEST_STEP <= step <= LARGEST_STEP:
            self._pace.last_step = step
        else:
            step = self._take_step(step)
        if values:
            record = Metrics(logged, step, values)
            # As `_append` does, in line: a call costs as much as the encoding.
            try:
                self._write(encode(record))
            except Exception as error:
                self._append_otherwise(record, error)
        if waiting:
            self._pending.add_scalars(logged, step, waiting)
        if not self._pace.looked <= now < self._pace.next_look and not self._closing:
            self._look(now)

    def log_params(self, data: Any) -> None:
        """Log hyper-parameters: a mapping, dataclass, Namespace or DictConfig, nested at will. Later values win.

        Values of the configuration's and the environment's secrets in them, and whatever stands under a key that is
        named like a secret (`api_key`, `password`), are replaced by `<secret>`.
        """
        self._append(Params(time.time_ns(), hide_secrets(plain_params(data), self._secrets)))

    def add_tags(self, tags: Iterable[str] | Mapping[str, str | None] | str) -> None:
        """Add tags: texts, or key -> value."""
        self._append(Tags(time.time_ns(), plain_tags(tags)))

    def remove_tags(self, tags: Iterable[str] | str) -> None:
        """Remove tags; one that is not there is ignored."""
        self._append(Tags(time.time_ns(), {}, tuple(plain_tags(tags))))

    def log_text(self, name: str, text: str, step: Any = None) -> None:
        """Log a text under a name, at a step if one is given."""
        check_names({name: text}, "log_text")
        shown = scrub(str(text), self._secrets)
        self._append(Text(time.time_ns(), name, shown, None if step is None else as_step(step)))

    def log_histogram(self, name: str, counts: Any, edges: Any, step: Any = None) -> None:
        """Log a histogram: `counts` [B] and bin `edges` [B + 1], growing. Raises `ValueError` on other shapes."""
        import numpy as np

        from tracker_bridge.records import pack_values

        check_names({name: counts}, "log_histogram")
        count, edge = np.asarray(counts, dtype=np.float64), np.asarray(edges, dtype=np.float64)
        if count.ndim != 1 or edge.shape != (count.size + 1,):
            raise ValueError(f"histogram {name!r} needs counts [B] and edges [B + 1], not {count.shape}, {edge.shape}")
        if count.size == 0 or not (np.diff(edge) > 0).all():
            raise ValueError(f"histogram {name!r} needs at least one bin and growing edges")
        packed = pack_values(edge), pack_values(count)
        self._append(Histogram(time.time_ns(), name, self._take_step(step), *packed))

    def log_artifact(self, path: str | Path, name: str | None = None, step: Any = None) -> None:
        """Keep a copy of a file with the run and send it to the trackers that take files.

        Raises `ValueError` if there is no such file. A copy that fails (a full disk) is counted, not raised.
        """
        import mimetypes

        source = Path(path)
        if not source.is_file():
            raise ValueError(f"log_artifact: there is no file {source}")
        name = name or source.name
        check_names({name: path}, "log_artifact")
        if self._paths is None or self._journal is None:
            return
        stored = self._paths.files / f"{time.time_ns()}-{source.name}"
        try:
            self._paths.files.mkdir(exist_ok=True)
            shutil.copyfile(source, stored)
        except OSError as error:
            self._say_once(f"the artifact {source} could not be kept: {error}")
            return
        kind = mimetypes.guess_type(source.name)[0] or "application/octet-stream"
        step = None if step is None else as_step(step)
        self._append(Artifact(time.time_ns(), name, str(stored.relative_to(self._paths.root)), step, kind))

    def watch(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any
    ) -> GradientNormCollector:
        """Collect the gradient norms of `model`'s layers into this run, before each step of `optimizer`.

        `options` are those of `tracker_bridge.collector.GradientNormCollector`; where one is not given, the
        configuration's `gradients` section holds. `name` tells several models apart (default: the first has none).
        `scaler`: the `GradScaler` in use. `histograms=True` logs a histogram of each layer's gradient as well.
        `group_by` may be `parameter`, `module`, `block`, `total` or a callable. Without an optimizer, call `collect()`
        yourself before each step.
        """
        collector = watch(self, model, optimizer, options)
        self._collectors.append(collector)
        return collector

    def on_alert(self, callback: Callable[[Alert], object]) -> None:
        """Call `callback` with each alert of the health rules, within about a second of a later logging call.

        It is called on the thread that logs. What it raises is told once and counted in `callback_faults`; it reaches
        neither that logging call nor another callback, also where it is `SystemExit`; only Ctrl-C goes on its way. To
        stop a training, set something that its loop looks at.
        Raises `TypeError` for what cannot be called, or takes another number of arguments than one.
        """
        if not callable(callback):
            raise TypeError(f"on_alert: callback must be callable, not {type(callback).__name__}")
        if (wrong := _refused_signature(callback)) is not None:
            raise TypeError(f"on_alert: callback must take one argument, the alert; {_name(callback)!r} takes {wrong}")
        self._on_alert.append(callback)
        if self._alerts is None and self._paths is not None:
            self._alerts = JournalReader(self._paths.alerts)

    @property
    def callback_faults(self) -> dict[str, int]:
        """How often each callback of `on_alert` has raised, by its name; empty if none has."""
        return dict(self._callback_faults)

    # --- ending

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was logged so far has reached every backend; False if `timeout` (seconds) is over."""
        if self._paths is None or self._journal is None or self._closed:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        if not self._pending.complete_within(timeout):
            return False
        paths, target = self._paths, self._journal.sequence
        self._channel.nudge()
        return wait_until(
            lambda: all(load_state(paths, name).position.sequence >= target for name in self._backends),
            None if until is None else until - time.monotonic(),
        )

    def close(self, status: str = "finished", timeout: float | None = None) -> Delivery:
        """End the run and wait at most `timeout` seconds (None: the configured `close_timeout`) for delivery.

        `status`: finished, failed, killed or crashed. What is not delivered in that time stays in the run directory;
        the result says so, with the command that delivers it. A second call returns the first one's result. Ctrl-C ends
        the waiting at once, keeps what is left, and is raised.
        """
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
        before = sys.exc_info()[1]
        delivery, interrupted = self._end(status, self._close_timeout if timeout is None else max(0.0, timeout))
        if interrupted:
            # Not from where the waiting was interrupted, which concerns nobody.
            raise before if isinstance(before, KeyboardInterrupt) else KeyboardInterrupt
        return delivery

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _, interrupted = self._end(_status_after(error), self._close_timeout)
        if interrupted and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt

    # --- inside

    def _end(self, status: str, seconds: float) -> tuple[Delivery, bool]:
        """How delivery stands after at most `seconds`, and whether Ctrl-C has ended the waiting."""
        with self._lock:
            first, self._closing = not self._closing, True
            self._metrics = None
        if not first:
            return self._delivery or self._report(), False
        interrupted = False
        until = time.monotonic() + seconds
        try:
            # What is on its way may never arrive: the rest of the time is for what has.
            self._write_end(status, max(_ARRIVAL, seconds / 2))
            self._channel.finish(max(0.0, until - time.monotonic()))
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                self._write_end(status, 0.0)
                self._channel.cut_short()
        delivery = self._delivery = self._report()
        interrupted_callback = False
        if self._alerts is not None:
            try:
                self._tell_alerts(self._alerts)
            except KeyboardInterrupt:
                interrupted_callback = True
            except Exception as error:
                self._say_once(f"the last alerts could not be read: {type(error).__name__}: {error}")
            self._alerts.close()
        self._show_notices()
        if interrupted:
            self._say(f"run {self._id}: interrupted while it was delivered; what is left is kept in {self.dir}")
        if not delivery.complete:
            self._say(f"run {self._id}:\n{delivery}")
        if interrupted and self.dir is not None and delivery.command is None:
            self._say(f"deliver the rest with: {sync_command(self.dir)}")
        _exit.unregister(self)
        return delivery, interrupted or interrupted_callback

    def _write_end(self, status: str, seconds: float) -> None:
        """Put the end of the run on disk, after at most `seconds` for what is on its way from a device.

        Called again if Ctrl-C came in between.
        """
        for collector in self._collectors:
            with contextlib.suppress(Exception):
                collector.detach()
        self._collectors.clear()  # they hold the model, and scripts that train one after another need its memory
        self._pending.complete_within(seconds)
        self._pending.stop()
        self._pending.give_up()
        if not self._closed:
            self._append(RunFinished(time.time_ns(), status))
            self._closed = True
            if self._journal is not None:
                self._write, self._shortcut = self._write_too_late, None
        if not self._marked:
            self._mark(status)
            self._marked = True
        if self._journal is not None:
            self._journal.close()

    @property
    def _delivers_on_thread(self) -> bool:
        return isinstance(self._channel, ThreadChannel)

    def _take_step(self, step: Any) -> Step:
        if step is not None:
            if type(step) is not int or not -(2**63) <= step < 2**63:
                step = as_step(step)
            self._pace.last_step = step
            return step  # type: ignore[no-any-return]
        with self._lock:
            last = self._pace.last_step
            following = last + 1 if type(last) is int and last < LARGEST_STEP else self._step_after(last)
            self._pace.last_step = following
            return following

    def _step_after(self, last: Step) -> int:
        if last < LARGEST_STEP:
            return int(last) + 1
        self._say_once(f"there is no step after {LARGEST_STEP}; what is logged without a step is logged at that one")
        return LARGEST_STEP

    def _append(self, record: AnyRecord) -> None:
        try:
            if self._shortcut is None or self._shortcut(record) == -1:
                self._write(encode(record))
        except Exception as error:
            self._append_otherwise(record, error)

    def _append_otherwise(self, record: AnyRecord, error: Exception) -> None:
        """After a record was refused: without what no encoding has, else counted."""
        try:
            if isinstance(error, UnicodeEncodeError):
                # Half a character (a file name of another encoding, say) is no reason to lose what stands beside it.
                self._write(encode(encodable(record)))
                return
        except Exception as second:
            error = second
        self._lost(error)

    def _lost(self, error: Exception) -> None:
        """Count a record that cannot be written."""
        self._say_once(f"a record could not be written: {type(error).__name__}: {error}")
        with self._lock:
            # `encode` raises these two on what a record may not hold; anything else is a fault of the journal's own.
            known = isinstance(error, (TypeError, OverflowError))
            self._unwritten["not_encodable" if known else type(error).__name__] += 1

    def _write_too_late(self, _payload: bytes) -> None:
        self._say_once("the run is closed; what is logged after close() is not kept")

    def _not_written(self) -> Counter[str]:
        """This attempt's records that never reached the journal, by reason."""
        return self._unwritten + Counter(self._journal.dropped if self._journal is not None else {})

    def _look(self, now: int) -> None:
        # Both ends, because the clock may be set back.
        self._pace.looked = now
        self._pace.next_look = now + _LOOK_NS
        self._pending.complete()
        try:
            self._channel.look()
            self._show_notices()
            if self._alerts is not None:
                self._tell_alerts(self._alerts)
        except Exception as error:
            self._say_once(f"looking after delivery failed: {type(error).__name__}: {error}")

    def _tell_alerts(self, alerts: JournalReader) -> None:
        for entry in alerts.read():
            if isinstance(entry, Entry) and isinstance(entry.record, Alert):
                for callback in self._on_alert:
                    self._call_back(callback, entry.record)

    def _call_back(self, callback: Callable[[Alert], object], alert: Alert) -> None:
        try:
            callback(alert)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well: a callback may not end the script
            name = _name(callback)
            self._callback_faults[name] += 1
            if self._callback_faults[name] == 1:
                text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                self._say(
                    f"the on_alert callback {name!r} raised {text} (training goes on; its further faults are counted)"
                )

    def _mark(self, status: str) -> None:
        if self._paths is None or self._journal is None:
            return

        def change(manifest: Manifest) -> Manifest:
            lost = Counter(manifest.not_written) + self._not_written()
            return msgspec.structs.replace(manifest, status=status, finished_ns=time.time_ns(), not_written=dict(lost))

        try:
            update_manifest(self._paths, change)
        except Exception as error:
            self._say_once(f"run.json could not be written: {error}")

    def _report(self) -> Delivery:
        if self._paths is None or self._journal is None:
            return Delivery({}, {}, None)
        with JournalReader(self._paths.journal) as reader:
            end = reader.end()
        urls = self.urls
        backends = {}
        for name in self._backends:
            state = load_state(self._paths, name)
            pending = max(0, end - state.position.sequence)
            backends[name] = BackendDelivery(
                state.health, state.sent, pending, state.points, state.dropped, state.last_error, urls.get(name)
            )
        lost = self._not_written()
        if is_gone(self._paths):
            # With the records went each backend's word of how far it had got.
            lost[REMOVED] = self._journal.sequence
        return Delivery(backends, dict(lost), self._paths.root)

    def _show_notices(self) -> None:
        """Show what delivery has to say, once."""
        if self._paths is None:
            return
        with contextlib.suppress(OSError):
            path = self._paths.notices
            if not path.exists() or path.stat().st_size <= self._shown:
                return
            with path.open("rb") as file:
                file.seek(self._shown)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._shown += len(whole)
            for line in whole.decode("utf-8", "replace").splitlines():
                self._say(line)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def _say(self, text: str) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.write("".join(f"tracker_bridge: {line}\n" for line in text.splitlines()))

    def _close_at_exit(self, *, hurry: bool = False) -> bool:
        """End the run, with `hurry` without waiting; True if Ctrl-C has ended the waiting (it goes no further)."""
        with contextlib.suppress(Exception):
            return self._end(_exit.exit_status(), 0.0 if hurry else self._close_timeout)[1]
        return False

    def _forget_after_fork(self) -> None:
        self._closed = True
        self._metrics = None
        self._journal = None
        self._write, self._shortcut = _nowhere, None
        self._pending.forget_after_fork()
        self._channel.forget_after_fork()
        self._channel = NoChannel()
        self._delivery = Delivery({}, {}, None)


def _nowhere(_payload: bytes) -> None:
    """On ranks that do not write, and in forked children."""


def _name(callback: Callable[..., object]) -> str:
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


def _refused_signature(callback: Callable[..., object]) -> str | None:
    """What `callback` takes if that is surely not one argument; None where it is, or where nobody can tell."""
    import inspect

    try:
        # Not that of what it wraps: a wrapper may take more, or pass on less.
        signature = inspect.signature(callback, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(None)
    except TypeError:
        return str(signature)
    return None


def _status_after(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    if isinstance(error, SystemExit):
        return "finished" if error.code in (None, 0) else "failed"
    return "killed" if isinstance(error, KeyboardInterrupt) else "failed"
