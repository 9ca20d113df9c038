"""Copies the calls of MLflow's client, on which its fluent functions and its autologging rest.

Of several MLflow runs the first has its names unchanged, each further one has its run's name in front of them.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from tracker_bridge.attaching._held import holds
from tracker_bridge.mirroring._prefixes import Prefixes
from tracker_bridge.mirroring._session import Destination
from tracker_bridge.mirroring._tap import Target

__all__ = ["MlflowCopier"]

_CALLS = ("log_metric", "log_param", "log_batch", "set_tag", "delete_tag", "log_artifact", "log_artifacts")


class MlflowCopier:
    """See `Copier`."""

    tracker = "mlflow"

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._prefixes = Prefixes()
        self._signatures: dict[str, inspect.Signature] = {}

    def targets(self) -> list[Target]:
        """The client's methods by which everything of a run is written."""
        client = import_module("mlflow.tracking.client").MlflowClient
        for name in _CALLS:
            self._signatures[name] = inspect.signature(vars(client)[name])
        return [Target(client, name, name) for name in _CALLS]

    def prepare(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Nothing is needed."""

    def copy(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], prepared: Any) -> None:
        """Record what the call said."""
        del prepared
        session = self._destination.session()
        bound = self._signatures[call].bind(*args, **kwargs)
        bound.apply_defaults()
        said = bound.arguments
        run_id = said["run_id"]
        if session is None or run_id is None or holds(session.run, run_id):
            return
        prefix = self._prefixes.of(run_id, lambda: _name_of(said["self"], run_id))
        run = session.run
        if call == "log_metric":
            when = said["timestamp"]
            run.log_metrics({prefix + said["key"]: said["value"]}, said["step"] or 0, timestamp=when and when / 1000)
        elif call == "log_param":
            run.log_params({prefix + said["key"]: said["value"]})
        elif call == "set_tag":
            _add_tags(run, prefix, {said["key"]: said["value"]})
        elif call == "delete_tag":
            run.remove_tags([prefix + said["key"]])
        elif call == "log_batch":
            for metric in said["metrics"]:
                when = metric.timestamp / 1000 if metric.timestamp else None
                run.log_metrics({prefix + metric.key: metric.value}, metric.step or 0, timestamp=when)
            if said["params"]:
                run.log_params({prefix + param.key: param.value for param in said["params"]})
            _add_tags(run, prefix, {tag.key: tag.value for tag in said["tags"]})
        elif call == "log_artifact":
            folder = prefix + (said["artifact_path"] + "/" if said["artifact_path"] else "")
            path = Path(said["local_path"])
            if path.is_dir():
                session.keep_folder(path, folder + path.name)
            else:
                session.keep_file(path, folder + path.name)
        else:
            session.keep_folder(said["local_dir"], (prefix + (said["artifact_path"] or "")).strip("/"))
        session.coverage.translate(call)


def _add_tags(run: Any, prefix: str, tags: dict[str, Any]) -> None:
    """Those that the script set; `mlflow.*` are MLflow's own."""
    own = {prefix + key: str(value) for key, value in tags.items() if not key.startswith("mlflow.")}
    if own:
        run.add_tags(own)


def _name_of(client: Any, run_id: str) -> str:
    return str(client.get_run(run_id).info.run_name or run_id[:8])
