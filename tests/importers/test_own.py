"""What our own adapters write is turned back in their runs only, and gives a hostile file no way in."""

from __future__ import annotations

import json
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from tests.importers.helpers import only_run, params_of, points_of, records_of, status_of, tags_of
from tests.importers.test_neptune_db import forge, snapshot
from tests.importers.test_tensorboard import VERSION, scalar, write_events
from tracker_bridge.importers import discover

ABOUT = "events.out.tfevents.1700000000.host.1.0.about.000000"
SERIES = "events.out.tfevents.1700000000.host.1.1.series"


def text(tag: str, content: str) -> Event:
    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=7, string_val=[content.encode()])
    return Event(wall_time=1.7e9, summary=Summary(value=[Summary.Value(tag=tag, metadata=plugin, tensor=tensor)]))


def sheet(name: str, content: object) -> Event:
    return text(f"tracker_bridge/{name}/text_summary", f"```json\n{json.dumps(content)}\n```")


def test_a_foreign_run_with_names_like_ours_is_left_alone(tmp_path: Path) -> None:
    """In a run that no adapter of ours wrote, `late`, `tracker_bridge/...` and `x/non_finite` mean what they say."""
    write_events(tmp_path / "run", [VERSION, scalar("x/non_finite", 1, 2.0), text("tracker_bridge/status", "killed")])
    write_events(tmp_path / "run" / "late", [VERSION, scalar("y", 1, 1.0)])
    runs = {run.name: list(run.records()) for run in discover("tensorboard", tmp_path)}
    assert sorted(runs) == ["run", "run/late"]  # type: ignore[type-var]
    assert points_of(runs["run"]) == {"x/non_finite": [(1, 2.0)]}
    assert status_of(runs["run"]) == "finished"
    forge(tmp_path / "db", [(0, snapshot(1, {"tracker_bridge/names/x": 1.0, "x": 2.0}))])
    assert set(points_of(records_of("neptune-db", tmp_path / "db"))) == {"tracker_bridge/names/x", "x"}


def test_params_come_whole_from_the_file_beside_but_never_from_elsewhere(tmp_path: Path) -> None:
    """The whole params are taken from the `params.json` of the run; a link out of its folder is not followed."""
    folder = tmp_path / "logs" / "run-id"
    write_events(
        folder, [VERSION, sheet("params", {"lr": 0.1, "long": "cut"}), sheet("tags", {"a": None, "b": "x"})], ABOUT
    )
    write_events(folder, [VERSION, scalar("loss", 1, 1.0)], SERIES)
    (folder / "params.json").write_text(json.dumps({"lr": 0.1, "long": "the whole", "nested": {"n": None}}))
    before = only_run("tensorboard", tmp_path / "logs")
    records = list(before.records())
    assert params_of(records) == {"lr": 0.1, "long": "the whole", "nested": {"n": None}}
    assert tags_of(records) == {"a": None, "b": "x"}
    assert points_of(records) == {"loss": [(1, 1.0)]}
    (tmp_path / "secret.json").write_text(json.dumps({"password": "private"}))
    (folder / "params.json").unlink()
    (folder / "params.json").symlink_to(tmp_path / "secret.json")
    assert params_of(list(before.records())) == {"lr": 0.1, "long": "cut"}


def test_an_own_run_keeps_its_id_while_its_files_are_renamed(tmp_path: Path) -> None:
    """The adapter replaces its file about the run as it goes on; the imported run stays the same run."""
    write_events(tmp_path / "run-id", [VERSION], ABOUT)
    before = only_run("tensorboard", tmp_path).run_id
    (tmp_path / "run-id" / ABOUT).rename(tmp_path / "run-id" / ABOUT.replace("000000", "000007"))
    assert only_run("tensorboard", tmp_path).run_id == before
