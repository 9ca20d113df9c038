"""What all shims share: a session is one run of the shimmed tracker, led to one `tracker_bridge.Run`.

A session begins and ends the run, counts what became of the calls, and makes files of things that are no files. Which
call means what is each shim's own business.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from secrets import token_hex
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from tracker_bridge.compat._coverage import Coverage, say, say_once
from tracker_bridge.config import Config, load_config
from tracker_bridge.errors import UsageError
from tracker_bridge.run import Delivery, Run, init

COVERAGE_FILE = "coverage.json"
"""In the run directory: what became of a shimmed script's calls."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_open: list[Session] = []
# Strong references: a writer that its script has dropped is still flushed and finished at exit.
_last: weakref.ref[Session] | None = None
_installed = False
_begun = False


class Session:
    """One run. `run` takes the records; `coverage` counts; `before_end` holds what is to be done before it ends."""

    def __init__(self, run: Run, coverage: Coverage) -> None:
        self.run = run
        self.coverage = coverage
        self.before_end: list[Callable[[], None]] = []
        self.ended = False
        self._wound_up = False

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run.id

    def url(self, backend: str) -> str:
        """Where to look at the run: at `backend` if it is a configured one, else at any, else the directory."""
        urls = self.run.urls
        found = urls.get(backend) or next(iter(urls.values()), None)
        return found or self.place().as_uri()

    def place(self) -> Path:
        """The run directory, or a temporary one where the run has none."""
        if self.run.dir is not None:
            return self.run.dir
        return Path(tempfile.gettempdir())

    def keep_file(self, path: str | os.PathLike[str], name: str, step: Any = None) -> None:
        """Keep a file under `name`. Raises `ValueError` if there is none."""
        self.run.log_artifact(Path(path), name, step)

    def keep_bytes(self, content: bytes, name: str, suffix: str, step: Any = None) -> None:
        """Keep `content` as a file under `name`; `suffix` (`.png`) says what it is."""
        with tempfile.TemporaryDirectory(prefix="tracker_bridge-") as folder:
            stem = re.sub(r"[^A-Za-z0-9._-]", "_", name.rpartition("/")[2])[:64].removesuffix(suffix)
            path = Path(folder) / f"{stem or 'file'}{suffix}"
            path.write_bytes(content)
            self.run.log_artifact(path, name, step)

    def keep_folder(self, folder: str | os.PathLike[str], prefix: str) -> int:
        """Keep every file below `folder` under `prefix/<relative path>`; returns how many there were."""
        root = Path(folder)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for path in files:
            inner = path.relative_to(root).as_posix()
            self.run.log_artifact(path, f"{prefix}/{inner}" if prefix else inner)
        return len(files)

    def end(self, status: str | None = None, timeout: float | None = None) -> Delivery:
        """End the run (None: as the exception that is being handled says) and report what became of the calls."""
        self._wind_up()
        self.ended = True
        if self in _open:
            _open.remove(self)
        delivery = self.run.close(status_now() if status is None else status, timeout)
        self._report()
        return delivery

    def _wind_up(self) -> None:
        if self._wound_up:
            return
        self._wound_up = True
        for action in self.before_end:
            try:
                action()
            except Exception as error:
                say_once(f"{self.coverage.tracker}: {type(error).__name__} at the end of the run: {error}")

    def _report(self) -> None:
        if self.run.dir is None:
            return
        say("\n".join(self.coverage.lines(self.run.id)))
        with contextlib.suppress(OSError):
            (self.run.dir / COVERAGE_FILE).write_text(json.dumps(self.coverage.as_data(), indent=2) + "\n")


def begin(
    tracker: str,
    *,
    project: str | None = None,
    experiment: str | None = None,
    name: str | None = None,
    run_id: str | None = None,
    tags: Any = (),
    params: Mapping[str, Any] | None = None,
) -> Session:
    """Begin a run by the configuration that `tracker_bridge.init` finds, with what the shim's own call says.

    `run_id` may be any text, and may belong to a run that ended: that run is continued. If another process or another
    object is still writing it, this one gets an id of its own and says so. Raises `ConfigError`.
    """
    global _installed, _last, _begun
    wanted = None if run_id is None else as_run_id(run_id)
    told: dict[str, Any] = {"project": project, "experiment": experiment, "name": name, "tags": tags, "params": params}
    config = _configuration()
    try:
        run = init(config, run_id=wanted, resume=wanted is not None, **told)
    except UsageError as error:
        if wanted is None:
            raise
        other = f"{wanted[:100]}-{token_hex(3)}"
        run = init(config, run_id=other, **told)
        say(f"{tracker}: {error}; this process records into run {other}")
    if wanted is not None and wanted != run_id:
        run.log_params({"run_id": run_id})
    session = Session(run, Coverage(tracker, silent=run.dir is None))
    if run.dir is None:
        say_once(f"{tracker}: this process (rank {os.environ.get('RANK', '?')}) records nothing: the first rank does")
    _begun = True
    _open.append(session)
    _last = weakref.ref(session)
    if not _installed:
        _installed = True
        # Registered after the runs' own exit handler, hence run before it: what is kept at the end still gets in.
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_open.clear)
    return session


def current_run() -> Run | None:
    """The run of the session that was begun last and is open, on every rank."""
    session = None if _last is None else _last()
    if session is not None and not session.ended:
        return session.run
    return _open[-1].run if _open else None


def open_session(tracker: str) -> Session | None:
    """The last session of `tracker` that is open."""
    return next((session for session in reversed(_open) if session.coverage.tracker == tracker), None)


def any_begun() -> bool:
    """Whether a shim has ever begun a run in this process."""
    return _begun


def status_of(error: BaseException | None) -> str:
    """The status of a run that ends with this exception."""
    if error is None or isinstance(error, GeneratorExit):
        return "finished"
    if isinstance(error, SystemExit):
        return "finished" if error.code in (None, 0) else "failed"
    return "killed" if isinstance(error, KeyboardInterrupt) else "failed"


def status_now() -> str:
    """The status of a run that ends here: `failed` or `killed` inside the handling of an exception."""
    return status_of(sys.exc_info()[1])


def as_run_id(text: str) -> str:
    """`text` as a run id: as it is if that is possible, else with the odd characters replaced and a hash."""
    if _RUN_ID.fullmatch(text):
        return text
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "run"
    return f"{plain}-{hashlib.blake2b(text.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def cannot(tracker: str, call: str, instead: str = "") -> NoReturn:
    """Raise the error for a call that has no meaning without the tracker itself."""
    raise NotImplementedError(
        f"{tracker}.{call} has no meaning here: tracker_bridge stands in for {tracker} and only records. "
        + (instead or f"Call it in a script that uses {tracker} itself.")
    )


def unsupported(tracker: str, call: str, instead: str = "") -> Any:
    """A callable that raises that error, for the names of such calls."""

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        cannot(tracker, call, instead)

    refuse.__name__ = refuse.__qualname__ = call.rpartition(".")[2]
    return refuse


def missing(module: ModuleType | str, tracker: str, name: str, raising: Iterable[str]) -> Any:
    """For a module's `__getattr__`: a call that raises for the names in `raising`, `AttributeError` for others."""
    if name in raising:
        return unsupported(tracker, name)
    raise AttributeError(
        f"module {module!r} has no attribute {name!r} (tracker_bridge stands in for {tracker}; it has the logging API)"
    )


def truthy(name: str) -> bool:
    """Whether an environment variable is set to yes."""
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def _configuration() -> Config:
    config = load_config()
    aliases = sys.modules.get("tracker_bridge.launch._aliases")
    if config.delivery.mode == "thread" and aliases is not None and aliases.active():
        # A thread of this process would import the stand-in where its adapter wants the tracker's SDK.
        say_once("delivery.mode: thread is not possible under `tracker-bridge run`; a process delivers")
        return msgspec.structs.replace(config, delivery=msgspec.structs.replace(config.delivery, mode="process"))
    return config


def _at_exit() -> None:
    for session in list(_open):
        session._wind_up()
        session._report()
    _open.clear()
