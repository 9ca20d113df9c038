"""The config keys, with the names of MLflow's own arguments."""

from __future__ import annotations

from typing import Union

from tracker_bridge.adapter import Options


class MlflowOptions(Options, frozen=True, kw_only=True):
    """Options of the MLflow adapter; what is not given follows MLflow's own environment variables and defaults.

    `tracking_uri`: of `mlflow.set_tracking_uri` (else `MLFLOW_TRACKING_URI`, else MLflow's default, a sqlite file in
    the working directory). `experiment_name`, `artifact_location`: of `mlflow.create_experiment` (else
    `MLFLOW_EXPERIMENT_NAME`, `MLFLOW_EXPERIMENT_ID`, else `project/experiment` of the run). `run_name`, `run_id`,
    `parent_run_id`, `description`: of `mlflow.start_run`; a run named by `run_id` (or `MLFLOW_RUN_ID`) is continued and
    never ended, because somebody else owns it.
    """

    tracking_uri: Union[str, None] = None
    experiment_name: Union[str, None] = None
    artifact_location: Union[str, None] = None
    run_name: Union[str, None] = None
    run_id: Union[str, None] = None
    parent_run_id: Union[str, None] = None
    description: Union[str, None] = None
