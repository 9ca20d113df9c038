"""`mlflow.<flavor>`: autologging is a reported no-op; a model that is logged is kept as a pickle of its own kind."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tracker_bridge.compat._core import unsupported
from tracker_bridge.compat.mlflow import _fluent

FLAVORS = (
    "catboost",
    "fastai",
    "keras",
    "langchain",
    "lightgbm",
    "onnx",
    "openai",
    "paddle",
    "prophet",
    "pyfunc",
    "pyspark",
    "pytorch",
    "sentence_transformers",
    "sklearn",
    "spacy",
    "spark",
    "statsmodels",
    "tensorflow",
    "transformers",
    "xgboost",
)
_FILE = {"pytorch": "data/model.pth", "sklearn": "model.pkl"}
_HOME = "tracker_bridge.compat.mlflow"


class Flavor(ModuleType):
    """The module of one flavor. Loading and saving models raise `NotImplementedError`."""

    def __init__(self, flavor: str) -> None:
        super().__init__(f"{_HOME}.{flavor}", f"`mlflow.{flavor}`, as far as it logs.")
        self._flavor = flavor
        self.autolog = _fluent.leaving_out(f"{flavor}.autolog", "log what you want to see; gradients: see the config")

    def log_model(self, model: Any = None, artifact_path: str | None = None, *_args: Any, **kwargs: Any) -> Any:
        """Keep a torch or scikit-learn model's pickle below its name; others are reported and left out."""
        model = kwargs.get("pytorch_model", kwargs.get("sk_model", model))
        name = kwargs.get("name") or artifact_path or "model"
        held = _fluent._held()
        if self._flavor not in _FILE:
            held.leave_out(f"{self._flavor}.log_model", "only torch and scikit-learn models are kept")
        else:
            with tempfile.TemporaryDirectory(prefix="tracker_bridge-") as folder:
                path = Path(folder) / Path(_FILE[self._flavor]).name
                _save(self._flavor, model, path)
                held.session.keep_file(path, f"{name}/{_FILE[self._flavor]}")
            held.session.coverage.degrade(
                f"{self._flavor}.log_model", "the pickle is kept, without environment and signature"
            )
        if kwargs.get("registered_model_name"):
            held.leave_out("registered_model_name", "there is no registry")
        uri = f"runs:/{held.info.run_id}/{name}"
        return SimpleNamespace(model_uri=uri, run_id=held.info.run_id, artifact_path=name, model_id=None)

    def __getattr__(self, name: str) -> Any:
        if name in ("load_model", "save_model", "log_state_dict", "load_state_dict", "PythonModel"):
            return unsupported("mlflow", f"{self._flavor}.{name}", "Use the framework's own functions.")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _save(flavor: str, model: Any, path: Path) -> None:
    if flavor == "pytorch":
        import torch

        torch.save(model, path)
    else:
        path.write_bytes(pickle.dumps(model))


class DataModule(ModuleType):
    """`mlflow.data`: datasets are named, nothing of them is kept."""

    def __init__(self) -> None:
        super().__init__(f"{_HOME}.data", "`mlflow.data`, as far as scripts log inputs.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("from_"):
            return lambda *_args, **kwargs: SimpleNamespace(name=kwargs.get("name"), digest="", source=None)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
