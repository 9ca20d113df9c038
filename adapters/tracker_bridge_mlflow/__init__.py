"""MLflow through `MlflowClient.log_batch`, always synchronous and by run id, never the fluent API and its globals.

How items become calls is told in `_run`, what an error means in `_answers`. This package may import the public
contract `tracker_bridge.adapter` only.
"""

from tracker_bridge_mlflow._adapter import MlflowAdapter
from tracker_bridge_mlflow._options import MlflowOptions

__all__ = ["MlflowAdapter", "MlflowOptions"]
