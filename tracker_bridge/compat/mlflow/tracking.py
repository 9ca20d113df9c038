"""`mlflow.tracking`: the client, and the functions that older scripts take from here."""

from __future__ import annotations

from tracker_bridge.compat.mlflow._client import MlflowClient
from tracker_bridge.compat.mlflow._fluent import get_tracking_uri, is_tracking_uri_set, set_tracking_uri

__all__ = ["MlflowClient", "get_tracking_uri", "is_tracking_uri_set", "set_tracking_uri"]
