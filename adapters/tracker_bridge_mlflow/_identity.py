"""Which experiment and run of MLflow a run of the bridge is: found again by a tag, created once, never in `Default`.

Everything here may be called again after a failure at any place without a second run or experiment coming of it.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from tracker_bridge.adapter import RetryLater, RunInfo
from tracker_bridge_mlflow._answers import error_code
from tracker_bridge_mlflow._options import MlflowOptions

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_TAG, BACKEND_TAG = "tracker_bridge.run_id", "tracker_bridge.backend"
STATUS_TAG = "tracker_bridge.status"
"""Says `crashed`, which MLflow has no status for, as long as that is how the run ended."""
NO_EXPERIMENT = "tracker_bridge"
"""The experiment of runs that name none; MLflow's `Default` would mix them with everything else."""

_LONGEST_TAG = 5_000
_SOURCES = {
    "script": "mlflow.source.name",
    "user": "mlflow.user",
    "git_commit": "mlflow.source.git.commit",
    "git_branch": "mlflow.source.git.branch",
    "git_remote": "mlflow.source.git.repoURL",
}


def tracking_uri(options: MlflowOptions, run: RunInfo) -> str:
    """The URI to use, credentials included. A place relative to the working directory stays that of the first time."""
    chosen = options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    before = run.ids.get("tracking_uri")
    if before is not None and (chosen is None or _absolute(chosen, run.cwd) != chosen):
        return before
    if chosen is None:
        from mlflow import get_tracking_uri

        chosen = str(get_tracking_uri())
    return _absolute(chosen, run.cwd)


def without_credentials(uri: str) -> str:
    """`uri` as it may be written down."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def page(uri: str, experiment_id: str, run_id: str) -> str:
    """Where to look at the run: its page, or the store to give to `mlflow ui --backend-store-uri`."""
    plain = without_credentials(uri)
    if not plain.startswith(("http://", "https://")):
        return plain
    return f"{plain.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def find_experiment(client: MlflowClient, options: MlflowOptions, run: RunInfo) -> str:
    """The experiment's id; it is created if need be, by whoever comes first."""
    known = run.ids.get("experiment_id")
    if known is not None:
        return known
    name = options.experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if name is None and os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return os.environ["MLFLOW_EXPERIMENT_ID"]
    if name is None:
        name = "/".join(part for part in (run.project, run.experiment) if part) or NO_EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=options.artifact_location))
        except Exception as error:
            if error_code(error) != "RESOURCE_ALREADY_EXISTS":
                raise
        experiment = client.get_experiment_by_name(name)
    if experiment is None:
        raise RetryLater(f"experiment {name!r} exists but is not shown yet")
    if experiment.lifecycle_stage != "active":
        raise RetryLater(f"experiment {name!r} is deleted: restore it (mlflow experiments restore) or name another one")
    return str(experiment.experiment_id)


def find_run(client: MlflowClient, options: MlflowOptions, run: RunInfo, experiment_id: str) -> tuple[str, bool]:
    """The id of MLflow's run, and whether it is ours to end."""
    known = run.ids.get("run_id")
    if known is not None:
        return known, run.ids.get("owner") != "other"
    given = options.run_id or _given_by_environment(client, run)
    if given is not None:
        return given, False
    tags = {RUN_TAG: run.run_id, BACKEND_TAG: run.backend}
    # A reply that was lost must not leave a second run behind.
    query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    if "'" not in run.run_id + run.backend:
        found = client.search_runs([experiment_id], filter_string=query, max_results=1)
        if found:
            return str(found[0].info.run_id), True
    created = client.create_run(
        experiment_id,
        start_time=int(run.provenance.get("started_ns") or run.started_ns) // 1_000_000 or None,
        tags={**_context_tags(options, run), **tags},
        run_name=options.run_name or run.name or run.run_id,
    )
    return str(created.info.run_id), True


def _given_by_environment(client: MlflowClient, run: RunInfo) -> str | None:
    given = os.environ.get("MLFLOW_RUN_ID")
    if not given:
        return None
    # MLflow takes the variable for the first run of a process only.
    owner = client.get_run(given).data.tags.get(RUN_TAG, run.run_id)
    if owner != run.run_id:
        return None
    client.set_tag(given, RUN_TAG, run.run_id)
    return given


def _context_tags(options: MlflowOptions, run: RunInfo) -> dict[str, str]:
    """What MLflow's fluent API would have found out in the training process, from what that process noted."""
    tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": run.name or run.run_id, "mlflow.user": _user()}
    for key, value in run.provenance.items():
        text = _text(value)
        if text and key != "started_ns":
            tags[_SOURCES.get(key, f"tracker_bridge.{key}")] = text
    if options.parent_run_id:
        tags["mlflow.parentRunId"] = options.parent_run_id
    if options.description:
        tags["mlflow.note.content"] = options.description
    return tags


def _text(value: Any) -> str:
    if value is None or isinstance(value, Mapping):
        return ""
    text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text[:_LONGEST_TAG]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _absolute(uri: str, cwd: Path) -> str:
    """`sqlite:///mlflow.db` and plain paths belong to the script's working directory."""
    scheme, separator, path = uri.partition(":///")
    if scheme.startswith("sqlite") and separator and path and not path.startswith(("/", ":")):
        return f"{scheme}:///{os.path.abspath(cwd / path)}"
    if "://" not in uri and not uri.startswith(("databricks", "file:")) and uri:
        return os.path.abspath(cwd / uri)
    return uri
