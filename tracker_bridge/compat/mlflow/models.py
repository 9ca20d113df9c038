"""`mlflow.models`: signatures are not kept, so that there is none."""

from __future__ import annotations

from typing import Any

from tracker_bridge.compat._core import missing
from tracker_bridge.compat.mlflow._fluent import leaving_out

infer_signature: Any = leaving_out("models.infer_signature", "signatures are left out")


class ModelSignature:
    """Takes what a signature takes."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...


def __getattr__(name: str) -> Any:
    return missing(__name__, "mlflow", name, ("Model", "evaluate", "validate_serving_input"))
