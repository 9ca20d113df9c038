"""What is shipped: entry points, marker files, no top-level `adapters` package, pins for every requirement."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_adapter_is_registered_and_loads_without_its_sdk_being_imported() -> None:
    """The seven entry points load, and loading imports no SDK."""
    code = (
        "import sys; from importlib.metadata import entry_points as e;"
        "kinds = sorted(p.name for p in e(group='tracker_bridge.adapters') if p.load());"
        "print(kinds, sorted({'wandb', 'mlflow', 'neptune_scale', 'tensorboard', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kinds = ["console", "jsonl", "memory", "mlflow", "neptune", "tensorboard", "wandb"]
    assert done.stdout.strip() == f"{kinds} []"
    assert {point.name for point in entry_points(group="tracker_bridge.adapters")} >= set(kinds)


def test_packages_are_typed_and_adapters_is_a_folder() -> None:
    """PyPI's `adapters` owns that import name; each package of ours says that it is typed."""
    assert not (ROOT / "adapters" / "__init__.py").exists()
    for package in (ROOT / "tracker_bridge", *(ROOT / "adapters").glob("tracker_bridge_*")):
        assert (package / "py.typed").exists(), package


@pytest.mark.parametrize("extra", ["all", "dev", "transformers", "lightning", "accelerate"])
def test_every_requirement_is_pinned(extra: str) -> None:
    """constraints.txt pins whatever an extra names, so a fresh machine gets what was tested."""
    pinned = {
        re.split(r"[=\[;]", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    for requirement in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]:
        name = re.split(r"[\[<>=;! ]", requirement)[0].lower().replace("_", "-")
        if name not in ("tracker-bridge", "tomli"):
            assert name in pinned, f"{name} is not pinned in constraints.txt"
