"""`mlflow` without MLflow: the fluent API and the client's logging, leading to any configured backends.

Follows MLflow 3.17. Carried: experiments (as projects), runs (active per thread, nested, continued by id), metrics,
params, tags, artifacts, texts, dictionaries, figures, images. In another form: tables, torch and scikit-learn models
(pickles), nested runs (tag `parent_run`). Autologging, inputs, traces and system metrics are reported and left out.
Searching, loading, registering and evaluating raise `NotImplementedError`.
"""

from __future__ import annotations

from typing import Any

from tracker_bridge.compat._core import missing
from tracker_bridge.compat.mlflow import entities, exceptions, models, tracking
from tracker_bridge.compat.mlflow._client import MlflowClient
from tracker_bridge.compat.mlflow._flavors import FLAVORS, DataModule, Flavor
from tracker_bridge.compat.mlflow._fluent import (
    ActiveRun,
    active_run,
    create_experiment,
    delete_tag,
    end_run,
    flush_async_logging,
    get_artifact_uri,
    get_experiment,
    get_experiment_by_name,
    get_parent_run,
    get_registry_uri,
    get_run,
    get_tracking_uri,
    is_tracking_uri_set,
    last_active_run,
    leaving_out,
    log_artifact,
    log_artifacts,
    log_dict,
    log_figure,
    log_image,
    log_metric,
    log_metrics,
    log_param,
    log_params,
    log_table,
    log_text,
    set_experiment,
    set_registry_uri,
    set_tag,
    set_tags,
    set_tracking_uri,
    start_run,
    start_span,
    trace,
)
from tracker_bridge.compat.mlflow.exceptions import MlflowException

__version__ = "3.17.2"

__all__ = [
    "ActiveRun",
    "Image",
    "MlflowClient",
    "MlflowException",
    "active_run",
    "autolog",
    "create_experiment",
    "delete_tag",
    "disable_system_metrics_logging",
    "enable_system_metrics_logging",
    "end_run",
    "entities",
    "exceptions",
    "flush_async_logging",
    "get_artifact_uri",
    "get_experiment",
    "get_experiment_by_name",
    "get_parent_run",
    "get_registry_uri",
    "get_run",
    "get_tracking_uri",
    "is_tracking_uri_set",
    "last_active_run",
    "log_artifact",
    "log_artifacts",
    "log_dict",
    "log_figure",
    "log_image",
    "log_input",
    "log_inputs",
    "log_metric",
    "log_metrics",
    "log_param",
    "log_params",
    "log_table",
    "log_text",
    "login",
    "models",
    "set_experiment",
    "set_experiment_tag",
    "set_experiment_tags",
    "set_registry_uri",
    "set_tag",
    "set_tags",
    "set_tracking_uri",
    "start_run",
    "start_span",
    "trace",
    "tracking",
]

autolog: Any = leaving_out("autolog", "log what you want to see; gradients are watched if the configuration says so")
log_input: Any = leaving_out("log_input", "datasets are left out")
log_inputs: Any = leaving_out("log_inputs", "datasets are left out")
set_experiment_tag: Any = leaving_out("set_experiment_tag", "only runs have tags")
set_experiment_tags: Any = leaving_out("set_experiment_tags", "only runs have tags")
enable_system_metrics_logging: Any = leaving_out("enable_system_metrics_logging", "they are not measured here")
disable_system_metrics_logging: Any = leaving_out("disable_system_metrics_logging", "they are not measured here")
login: Any = leaving_out("login", "there is nothing to log in to")

_RAISING = (
    "create_external_model",
    "delete_experiment",
    "delete_run",
    "evaluate",
    "get_logged_model",
    "get_trace",
    "load_prompt",
    "load_table",
    "register_model",
    "register_prompt",
    "restore_run",
    "run",
    "search_experiments",
    "search_logged_models",
    "search_model_versions",
    "search_registered_models",
    "search_runs",
    "search_traces",
    "set_active_model",
)


class Image:
    """`mlflow.Image`: an image to log."""

    def __init__(self, image: Any) -> None:
        self.image = image


def __getattr__(name: str) -> Any:
    if name in FLAVORS:
        made: Any = Flavor(name)
    elif name == "data":
        made = DataModule()
    else:
        return missing(__name__, "mlflow", name, _RAISING)
    globals()[name] = made
    return made
