"""An adapter that is a distribution of its own: installed, found by its entry point, and through the same suite."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tracker_bridge import registry
from tracker_bridge.testing import AdapterTests, Point, StoredRun

pytest.importorskip("trackio")

SOURCE = Path(__file__).parent / "tracker_bridge_trackio"
OWN = "tracker_bridge/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder into which the distribution is installed, importable here and in subprocesses."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [*command, "--target", str(site), str(SOURCE)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
        # trackio reads it when it is imported, so all tests of a process share a store.
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        registry.adapter_kinds.cache_clear()
        yield site
    registry.adapter_kinds.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tracker_bridge_trackio"]:
        del sys.modules[name]
    importlib.invalidate_caches()


class TestTrackio(AdapterTests):
    """What is in trackio's database and folders."""

    context: ClassVar = ("script", "arguments", "host", "user", "git_commit")
    time_resolution: ClassVar = 2e-6

    @pytest.fixture(autouse=True)
    def _installed(self, site: Path) -> None:
        type(self).adapter_type = registry.adapter_class("trackio")

    def options(self) -> Mapping[str, Any]:
        return {"project": hashlib.sha256(str(self.place).encode()).hexdigest()[:16]}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        return stored_run(ids)


def stored_run(ids: Mapping[str, str]) -> StoredRun:
    folder = Path(ids["dir"])
    with sqlite3.connect(folder / f"{ids['project']}.db") as database:
        rows = database.execute(
            "SELECT step, strftime('%s', timestamp) + 0, substr(timestamp, 20, 7), metrics FROM metrics"
            " WHERE run_id = ? ORDER BY step, id",
            [ids["run_id"]],
        ).fetchall()
        (config,) = database.execute("SELECT config FROM configs WHERE run_id = ?", [ids["run_id"]]).fetchone()
        (runs,) = database.execute("SELECT COUNT(DISTINCT run_id) FROM metrics").fetchone()
    database.close()
    metrics: dict[str, list[Point]] = {}
    texts: dict[str, list[Any]] = {}
    histograms: dict[str, list[Any]] = {}
    files = folder / "media" / ids["project"] / "files" / ids["run_id"]
    artifacts = {str(path.relative_to(files)): path.read_bytes() for path in files.rglob("*") if path.is_file()}
    for step, seconds, fraction, text in rows:
        for name, value in json.loads(text).items():
            kind = value.get("_type") if isinstance(value, dict) else None
            if kind == "trackio.markdown":
                texts.setdefault(name, []).append((step, value["_value"]))
            elif kind == "trackio.histogram":
                histograms.setdefault(name, []).append((step, value["bins"], value["values"]))
            elif kind == "trackio.image":
                artifacts[name] = (folder / "media" / value["file_path"]).read_bytes()
            else:
                time = seconds + float(fraction) if fraction[:1] == "." else float(seconds)
                metrics.setdefault(name, []).append(Point(step, float(value), time))
    values: dict[str, Any] = json.loads(config)
    return StoredRun(
        metrics=metrics,
        renamed=part(values, "names/"),
        params={name: value for name, value in values.items() if not name.startswith(("_", OWN))},
        tags=part(values, "tags/"),
        texts=texts,
        histograms=histograms,
        artifacts=artifacts,
        status=values[f"{OWN}status"],
        context=part(values, ""),
        runs=runs,
    )


def part(config: Mapping[str, Any], head: str) -> dict[str, Any]:
    return {name.removeprefix(OWN + head): value for name, value in config.items() if name.startswith(OWN + head)}


def test_it_is_found_and_described_like_the_built_in_ones(site: Path) -> None:
    """`tracker-bridge backends` shows the distribution, its options and what it can hold."""
    command = [sys.executable, "-m", "tracker_bridge", "backends", "trackio", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)["adapters"]
    assert (entry["package"], entry["class"]) == (
        "tracker-bridge-trackio",
        "tracker_bridge_trackio._adapter:TrackioAdapter",
    )
    assert entry["installed"]
    assert [option["name"] for option in entry["options"]] == ["project", "name", "group"]
    assert entry["capabilities"]["media"] == ["artifact", "histogram", "image", "text"]


def test_only_the_public_contract_is_imported() -> None:
    """A third party has no other module of ours to stand on."""
    imported = [
        line.split()[1]
        for path in SOURCE.rglob("*.py")
        for line in map(str.strip, path.read_text().splitlines())
        if line.startswith(("from ", "import "))
    ]
    ours = {name for name in imported if name.partition(".")[0] == "tracker_bridge"}
    assert ours == {"tracker_bridge.adapter"}


def test_a_script_logs_to_it_by_config_alone(site: Path, tmp_path: Path) -> None:
    """`backends: {trackio: {}}` sends a run there through the delivery process, and a resumed run goes on in it."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import tracker_bridge as bridge

            first = int(sys.argv[1])
            config = {"project": "nlp/bert", "backends": {"trackio": {}}, "params": {"lr": 0.1}, "tags": ["x"]}
            with bridge.init(config, run_id="by-config", name="a run", resume=True) as run:
                for step in range(first, first + 3):
                    run.log_metrics({"loss": float("nan") if step == 2 else step}, step=step)
            """
        )
    )
    for first in (0, 3):
        done = subprocess.run(
            [sys.executable, str(script), str(first)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "tracker_bridge_runs" / "by-config" / "run.json").read_text())
    ids = manifest["backends"]["trackio"]["ids"]
    stored = stored_run(ids)
    losses = [point.value for point in stored.metrics["loss"]]
    assert [point.step for point in stored.metrics["loss"]] == list(range(6))
    assert [value for value in losses if not math.isnan(value)] == [0.0, 1.0, 3.0, 4.0, 5.0]
    assert math.isnan(losses[2])
    assert (stored.params, stored.tags, stored.status) == ({"lr": 0.1}, {"x": None}, "finished")
    assert stored.context["script"] == str(script)
