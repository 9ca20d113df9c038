"""The README's section "Translation": its first table is current, and each column of its second one is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from tests import readback_neptune, readback_wandb
from tests.servers import mlflow_sqlite, mlflow_template
from tracker_bridge import registry
from tracker_bridge.records import Metrics, Params, RunFinished, Tags, Text
from tracker_bridge.testing import Trial

__all__ = ["mlflow_sqlite", "mlflow_template"]

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN = 1_750_000_000_000_000_000
RUN = "job-7.b"
FACTS = {
    "script": "train_bert.py",
    "arguments": ["--lr", "0.1"],
    "host": "trainer-7",
    "user": "somebody",
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
}


@pytest.fixture(autouse=True)
def _no_variables_of_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("WANDB_", "NEPTUNE_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def backends(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracker_bridge", "backends", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_readme_has_the_table_that_the_adapters_declare() -> None:
    """`tracker-bridge backends --markdown` prints what stands between the markers; paste it there if this fails."""
    found = re.search(r"<!-- capabilities: begin -->\n(.*?)\n<!-- capabilities: end -->", README.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == backends("--markdown").stdout.rstrip("\n")


def test_one_adapter_as_markdown_and_two_forms_at_once() -> None:
    """ADAPTER chooses a column; a script cannot get two documents in one output."""
    one = backends("console", "--markdown")
    assert (one.returncode, one.stdout.splitlines()[0]) == (0, "|  | `console` |")
    both = backends("--markdown", "--json")
    assert (both.returncode, both.stdout) == (2, "")
    assert "--json and --markdown" in both.stderr


def delivered(folder: Path, kind: str, options: Mapping[str, Any]) -> Trial:
    """A run that says all that the table is about, delivered by the adapter `kind`."""
    cls = registry.adapter_class(kind)
    trial = Trial(
        folder / "queue",
        lambda: cls(msgspec.convert(options, cls.options_type)),
        run_id=RUN,
        project="nlp/bert",
        experiment="tracking",
        name="a run",
        provenance=FACTS,
    )
    trial.append(
        Params(BEGIN, {"lr": 0.1, "long": "x" * 300_000, "opt": {"name": "adamw"}}),
        Tags(BEGIN, {"t": None, "k": "v"}),
        Metrics(BEGIN, 7, {"loss": 1.0}),
        Text(BEGIN, "note", "without a step"),
        Params(BEGIN, {"lr": 0.2}),
        RunFinished(BEGIN, "killed"),
    )
    assert trial.deliver().dropped == {}
    return trial


def test_tensorboard(tmp_path: Path) -> None:
    """Folders `project/experiment/name-run_id`, HPARAMS and texts."""
    trial = delivered(tmp_path, "tensorboard", {"log_dir": "runs"})
    folder = Path(trial.ids["log_dir"])
    assert folder.relative_to(tmp_path) == Path("runs/nlp/bert/tracking/a run-job-7.b")
    read = EventAccumulator(str(folder)).Reload()
    sheets = {name: json.loads(tensor_text(read, f"tracker_bridge/{name}")[8:-4]) for name in ("run", "tags", "params")}
    assert FACTS.items() <= sheets["run"].items()
    assert (sheets["run"]["run_id"], sheets["tags"]) == (RUN, {"t": None, "k": "v"})
    assert sheets["params"]["lr"] == 0.2
    assert len(sheets["params"]["long"]) < 30_000
    assert len(json.loads((folder / "params.json").read_text())["long"]) == 300_000
    assert tensor_text(read, "tracker_bridge/status") == "killed"
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(7, 1.0)]
    assert tensor_text(read, "note") == "without a step"


def tensor_text(read: EventAccumulator, name: str) -> str:
    text: bytes = tensor_util.make_ndarray(read.Tensors(f"{name}/text_summary")[-1].tensor_proto).item()
    return text.decode()


def test_mlflow(tmp_path: Path, mlflow_sqlite: str) -> None:
    """The experiment `project/experiment`, a run of that name, params, tags, status."""
    from mlflow import MlflowClient

    trial = delivered(tmp_path, "mlflow", {"tracking_uri": mlflow_sqlite})
    client = MlflowClient(mlflow_sqlite)
    run = client.get_run(trial.ids["run_id"])
    tags = run.data.tags
    assert client.get_experiment(run.info.experiment_id).name == "nlp/bert/tracking"
    assert (run.info.run_name, run.info.status) == ("a run", "KILLED")
    assert (tags["tracker_bridge.run_id"], tags["t"], tags["k"]) == (RUN, "true", "v")
    assert (run.data.params["lr"], tags["param_changed.lr"], run.data.params["opt.name"]) == ("0.1", "0.2", "adamw")
    assert len(run.data.params["long"]) == 6_000
    assert (tags["mlflow.source.name"], tags["mlflow.user"]) == ("train_bert.py", "somebody")
    assert (tags["tracker_bridge.host"], tags["mlflow.source.git.commit"]) == ("trainer-7", FACTS["git_commit"])
    whole = json.loads(Path(client.download_artifacts(run.info.run_id, "params.json", str(tmp_path))).read_text())
    assert len(whole["long"]) == 300_000
    note = client.download_artifacts(run.info.run_id, "texts/note.txt", str(tmp_path))
    assert Path(note).read_text() == "without a step"
    assert [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")] == [(7, 1.0)]


def test_wandb(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Project, group, display name and id, config, tags, exit code; and no word of the SDK about any of it."""
    pytest.importorskip("wandb")
    trial = delivered(tmp_path, "wandb", {"mode": "offline"})
    assert capfd.readouterr() == ("", "")
    run = readback_wandb.read_run(tmp_path, trial.ids["run_id"])
    assert (trial.ids["run_id"], run.project) == (RUN, "nlp-bert")
    assert (run.last("groupName"), run.last("displayName")) == ("tracking", "a run")
    assert sorted(run.last("tags")) == ["k:v", "t"]
    assert (run.config["lr"], run.config["opt"]) == (0.2, {"name": "adamw"})
    assert len(run.config["long"]) <= 99_000
    assert len(json.loads(run.files["tracker_bridge/params.json"])["long"]) == 300_000
    assert (run.exit_code, run.summary["tracker_bridge_status"]) == (255, "killed")
    assert (run.environment["program"], run.environment["host"]) == ("train_bert.py", "trainer-7")
    assert [(row["global_step"], row["loss"]) for row in run.rows if "loss" in row] == [(7, 1.0)]
    assert [row["global_step"] for row in run.rows if "note" in row] == [7]


def test_neptune(tmp_path: Path) -> None:
    """Project, experiment and id, attributes, tags."""
    pytest.importorskip("neptune_scale")
    trial = delivered(tmp_path, "neptune", {"mode": "offline", "log_directory": "neptune"})
    run = readback_neptune.read_run(tmp_path / "neptune", RUN)
    attributes = run.attributes
    assert (dict(trial.ids), run.experiment) == ({"run_id": RUN, "project": "nlp/bert"}, "tracking")
    assert (attributes["tracker_bridge/name"], attributes["tracker_bridge/status"]) == ("a run", "killed")
    assert run.tags["sys/tags"] == {"t", "k:v"}
    assert (attributes["lr"], attributes["opt/name"]) == (0.2, "adamw")
    assert len(attributes["long"]) <= 256_000
    (whole,) = (
        content for name, content in readback_neptune.uploads(tmp_path / "neptune", RUN).items() if "params" in name
    )
    assert len(json.loads(whole)["long"]) == 300_000
    assert attributes["source_code/run_command"] == "train_bert.py --lr 0.1"
    assert (attributes["runtime/host"], attributes["runtime/user"]) == ("trainer-7", "somebody")
    assert [point[:2] for point in run.series["loss"]] == [(7, 1.0)]
    assert attributes["note"] == "without a step"
