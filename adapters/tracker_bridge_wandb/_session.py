"""The SDK's own run: started, described, ended. The only module that knows how wandb is set up.

wandb keeps state for the whole process. A start that failed leaves its run id unusable until `wandb.teardown`, which
ends every run of the process; so it is called only where no other run is active, and another id is taken otherwise.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
_process_wide = threading.RLock()
_started: dict[str, Any] = {}
# wandb allows a run id once in a process; a courier that died must not keep it from the next one.


def start(
    options: WandbOptions, run: RunInfo, run_id: str, config: Mapping[str, Any], on_stop: Callable[[], None]
) -> Any:
    """Begin or continue the W&B run. Raises `RetryLater`."""
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
                started = _started[run_id] = wandb.init(**arguments, settings=wandb.Settings(**settings))
            return started
        except Exception as error:
            # The service lets go of an id a moment after the run that had it was finished.
            if "is in use" not in str(error) or time.monotonic() > deadline:
                raise RetryLater(f"W&B could not be started: {type(error).__name__}: {error}") from error
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


def release(run_id: str) -> None:
    """End the run of an earlier opening in this process, if it still stands."""
    with _process_wide:
        run = _started.pop(run_id, None)
        if run is not None and not getattr(run, "_is_finished", True):
            discard(run)


def free_id() -> bool:
    """After a failed start: make the run id usable again. False if another run of this process forbids that."""
    with _process_wide:
        if _others_active():
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


def discard(run: Any) -> None:
    """Let go of a run whose service is gone or useless."""
    with suppress(Exception):
        run.finish(exit_code=1)
    with suppress(Exception):
        wandb.setup().remove_active_run(run)
    free_id()


def lines_on_server(run: Any) -> int | None:
    """How many rows the server says it has; None if it does not say. Raises `RetryLater`."""
    try:
        api = wandb.Api(overrides={"entity": run.entity, "project": run.project}, timeout=10)
        found = api.run(f"{run.entity}/{run.project}/{run.id}")
        count = found._attrs.get("historyLineCount")
    except Exception as error:
        raise RetryLater(f"W&B could not be asked what has arrived: {type(error).__name__}: {error}") from error
    return int(count) if isinstance(count, int) else None


def _others_active() -> bool:
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
