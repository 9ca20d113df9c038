"""The SDK's own run: started, described, ended. The only module that knows how wandb is set up.

wandb keeps state for the whole process. A start that failed leaves its run id unusable until the service is told that
the run has ended, or until `wandb.teardown`, which ends every run of the process and so is called only where no other
is open. What else is open may belong to the script, or to other backends, on threads of their own.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb
from wandb.proto import wandb_internal_pb2 as pb
from wandb.sdk import wandb_setup

from tracker_bridge.adapter import RetryLater, RunInfo
from tracker_bridge_wandb._options import WandbOptions, folder_of, from_run, project_of
from tracker_bridge_wandb._values import AXIS, tags

INIT_TIMEOUT = 30.0
FINISH_TIMEOUT = 20.0
"""Seconds. The SDK's own limits are 90 s, and about seven days."""
SETTLE_TIMEOUT = 2.0
GARBAGE_PERCENT = "400"
"""Growth of the service's heap until it is collected (Go's GOGC; its default is 100)."""
LET_GO_TIMEOUT = 5.0
_process_wide = threading.RLock()


@dataclass(frozen=True, slots=True)
class _Opening:
    run: Any
    run_id: str
    thread: threading.Thread


_openings: dict[Path, _Opening] = {}
# By the backend's own folder: a courier that died must not keep the run id from the next one, nor end another's run.


class IdTakenError(RetryLater):
    """The run id can never be used in this process, or not before a run ends that is none of ours."""


def start(
    options: WandbOptions, run: RunInfo, run_id: str, config: Mapping[str, Any], on_stop: Callable[[], None]
) -> Any:
    """Begin or continue the W&B run. Raises `RetryLater`, of which `IdTakenError` asks for another id."""
    if any(opening.run_id == run_id for folder, opening in list(_openings.items()) if folder != run.private_dir):
        raise RetryLater(
            f"W&B takes the run id {run_id} once at a time and another backend has it: give this one an `id` of its own"
        )
    settings: dict[str, Any] = {
        "silent": True,
        "console": "off",
        "x_disable_stats": True,
        # What the SDK would find out about this machine and repository is about the delivery process; see `describe`.
        "x_disable_machine_info": True,
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "x_save_requirements": False,
        "x_start_time": (run.started_ns or time.time_ns()) / 1e9,
        # By default up to 15 s of rows are in no file yet.
        "x_transaction_log_flush_interval": 0.05,
        "init_timeout": INIT_TIMEOUT,
        "finish_timeout": FINISH_TIMEOUT,
        "stop_on_fatal_error": True,
        "stop_fn": on_stop,
        "max_end_of_run_history_metrics": 0,
        "max_end_of_run_summary_metrics": 0,
        **options.settings,
    }
    arguments: dict[str, Any] = {
        "entity": options.entity,
        "project": project_of(options, run),
        "dir": folder_of(options, run),
        "id": run_id,
        "name": from_run(options.name, "WANDB_NAME", run.name),
        "notes": options.notes,
        "group": from_run(options.group, "WANDB_RUN_GROUP", run.experiment),
        "job_type": options.job_type,
        "mode": options.mode,
        "tags": tags(run.tags) or None,
        "config": dict(config),
        "resume": "allow",
        "reinit": "create_new",
    }
    deadline = time.monotonic() + SETTLE_TIMEOUT
    while True:
        try:
            with _process_wide, _roomy_service():
                _own_service()
                started = wandb.init(**arguments, settings=wandb.Settings(**settings))
                _openings[run.private_dir] = _Opening(started, run_id, threading.current_thread())
            return started
        except Exception as error:
            # The service lets go of an id a moment after the run that had it was finished.
            taken = "is in use" in str(error)
            if not taken or time.monotonic() > deadline:
                text = f"W&B could not be started: {type(error).__name__}: {error}"
                usable = (not taken and _let_go(run_id)) or _tear_down()
                raise (IdTakenError if taken and not usable else RetryLater)(text) from error
        time.sleep(0.05)


@contextmanager
def _roomy_service() -> Iterator[None]:
    """Let a service that is started now collect its garbage less often, unless the environment says how often.

    The service (in Go) does so whenever its few megabytes have doubled; with rows of many columns that is half of all
    that it computes.
    """
    if "GOGC" in os.environ:
        yield
        return
    os.environ["GOGC"] = GARBAGE_PERCENT
    try:
        yield
    finally:
        del os.environ["GOGC"]


def release(info: RunInfo, run_id: str) -> None:
    """End what an earlier opening of this backend, or one with this id whose thread is gone, has left standing."""
    with _process_wide:
        for folder, opening in list(_openings.items()):
            if folder == info.private_dir or (opening.run_id == run_id and not opening.thread.is_alive()):
                if getattr(opening.run, "_is_finished", True):
                    del _openings[folder]
                else:
                    _discard(opening.run)


def _let_go(run_id: str) -> bool:
    """After a failed start: end what the service began under the id. False if it does not answer, or cannot be asked.

    The service must have seen the run's end before it is told to forget the run: it would wait for that, and answer
    nobody else meanwhile.
    """
    try:
        from wandb.sdk.interface.interface_sock import InterfaceSock

        connection: Any = getattr(wandb_setup, "_singleton")._connection  # noqa: B009 - it is private
        failed = InterfaceSock(connection._asyncer, connection._client, stream_id=run_id)
        failed.deliver_exit(1).wait_or(timeout=LET_GO_TIMEOUT)
        connection.inform_finish(run_id=run_id)
    except Exception:
        return False
    return True


def _tear_down() -> bool:
    """End the service, and with it all that is left of earlier runs. False if another run is open."""
    with _process_wide:
        if _others_open():
            return False
        with suppress(Exception):
            wandb.teardown()
        return True


def describe(run: Any, info: RunInfo) -> None:
    """Tell W&B where the run comes from, and which column is the x axis."""
    run.define_metric(AXIS, hidden=True, overwrite=True)
    run.define_metric("*", step_metric=AXIS, overwrite=True)
    facts = info.provenance
    script = str(facts.get("script") or "")
    record = pb.EnvironmentRecord(
        os=str(facts.get("platform") or ""),
        python=str(facts.get("python") or ""),
        args=[str(argument) for argument in facts.get("arguments") or ()],
        program=script,
        code_path=script,
        root=str(facts.get("cwd") or ""),
        host=str(facts.get("host") or ""),
        username=str(facts.get("user") or ""),
    )
    if facts.get("git_commit"):
        record.git.commit = str(facts["git_commit"])
    if facts.get("git_remote"):
        record.git.remote_url = str(facts["git_remote"])
    record.started_at.FromNanoseconds(info.started_ns or time.time_ns())
    publish = getattr(getattr(run, "_interface", None), "publish_environment", None)
    if publish is not None:
        publish(record)


def log_path(run: Any) -> Path:
    """The run's `.wandb` file."""
    return Path(run.settings.sync_file)


def is_online(run: Any) -> bool:
    """Whether the run speaks to a server."""
    return not run.offline and not run.disabled


def finish(run: Any, exit_code: int) -> None:
    """End the run; returns within about `FINISH_TIMEOUT` s. Never raises: what arrived is checked afterwards."""
    with suppress(Exception):
        run.finish(exit_code=exit_code)
    for folder, opening in list(_openings.items()):
        if opening.run is run:
            del _openings[folder]


def _discard(run: Any) -> None:
    """Let go of a run whose service is gone or useless."""
    finish(run, 1)
    with suppress(Exception):
        wandb.setup().remove_active_run(run)
    _tear_down()


def lines_on_server(run: Any) -> int | None:
    """How many rows the server says it has; None if it does not say. Raises `RetryLater`."""
    try:
        api = wandb.Api(overrides={"entity": run.entity, "project": run.project}, timeout=10)
        found = api.run(f"{run.entity}/{run.project}/{run.id}")
        count = found._attrs.get("historyLineCount")
    except Exception as error:
        raise RetryLater(f"W&B could not be asked what has arrived: {type(error).__name__}: {error}") from error
    return int(count) if isinstance(count, int) else None


def _others_open() -> bool:
    # wandb takes a run for inactive as soon as it begins to finish.
    if _openings:
        return True
    # Asking through `wandb.setup` would start a service only to be asked.
    current = getattr(wandb_setup, "_singleton", None)
    return current is not None and current.most_recent_active_run is not None


def _own_service() -> None:
    """Forget a service that the environment names and another process owns.

    A script that uses wandb hands its service to its children; there our run would end with the script's, and its id
    would stay taken after a crash of ours.
    """
    owner = re.match(r"\d+-(\d+)-", os.environ.get("WANDB_SERVICE", ""))
    if owner is not None and int(owner[1]) != os.getpid():
        del os.environ["WANDB_SERVICE"]
