"""Reading a run's story, thinning it without losing a spike, and the files made of it (without a browser)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import tracker_bridge.report
from tests.report.runs import HOSTILE, hostile_records, names_of, training, write_run
from tracker_bridge.errors import UsageError
from tracker_bridge.health import HealthConfig
from tracker_bridge.records import (
    Alert,
    Metrics,
    NormVector,
    RunFinished,
    SeriesTable,
    pack_values,
)
from tracker_bridge.report import (
    diagnosis,
    norm_of,
    read_story,
    render_report,
    story_lines,
    verdict,
    write_picture,
    write_report,
)
from tracker_bridge.report._downsample import ABSENT, ZERO, bin_starts, decode, encode, extremes, scale_of, thin


@pytest.fixture
def troubled(tmp_path: Path) -> Path:
    """A run with a spike at 200 and a NaN at 300."""
    return write_run(tmp_path / "troubled", training(steps=400, spike_at=200, nan_at=300, max_norm=5.0), name="trouble")


def test_story(troubled: Path):
    """A story has the run's identity, series and norms, and what the rules find, in order."""
    story = read_story(troubled)
    assert (story.title, story.status, story.steps) == ("trouble", "finished", 400)
    assert story.params["learning_rate"] == 1e-3
    assert story.loss is not None
    assert story.loss.name == "train/loss"
    assert story.learning_rate is not None
    assert [(alert.rule, alert.step) for alert in story.alerts] == [("spike", 200), ("non_finite", 300)]
    (model,) = story.models
    assert model.norms.names == names_of(24)
    assert model.numel.tolist() == [64 * (1 + slot % 5) for slot in range(24)]


def test_the_configured_rules_are_used(tmp_path: Path):
    """A run is judged by the rules that it was configured with, or by those that are asked for."""
    records = list(training(steps=400, spike_at=200))
    run = write_run(tmp_path / "run", records, config={"health": {"disabled": ["spike"]}})
    assert read_story(run).alerts == ()
    assert [alert.rule for alert in read_story(run, HealthConfig()).alerts] == ["spike"]
    odd = write_run(tmp_path / "odd", records, config={"health": {"no": "such"}})
    assert [alert.rule for alert in read_story(odd).alerts] == ["spike"]


def test_alerts_of_the_journal_are_kept_once(tmp_path: Path):
    """An alert that the journal holds is shown; one that the rules find again is shown once."""
    found = read_story(write_run(tmp_path / "first", training(steps=300, spike_at=200))).alerts
    foreign = Alert(1, "theirs", 5, "warning", "from elsewhere", "text")
    records = [*training(steps=300, spike_at=200), *found, foreign]
    story = read_story(write_run(tmp_path / "second", records))
    assert [alert.rule for alert in story.alerts] == ["theirs", "spike"]


def test_two_models(tmp_path: Path):
    """A run with two watched models has both."""
    records = [
        SeriesTable(0, 0, "gradients", ("a.weight",), (4,)),
        SeriesTable(0, 1, "gradients/critic", ("b.weight", "c.weight"), (4, 9)),
        NormVector(0, 0, 0, pack_values([1.0])),
        NormVector(0, 0, 1, pack_values([2.0, 3.0])),
    ]
    story = read_story(write_run(tmp_path / "run", records))
    assert [(model.name, model.norms.names) for model in story.models] == [
        ("", ("a.weight",)),
        ("critic", ("b.weight", "c.weight")),
    ]
    assert "critic" in render_report([story])


@pytest.mark.parametrize("records", [[], [Metrics(0, 0, {"accuracy": 1.0})], [Metrics(0, 0, {"loss": math.nan})]])
def test_runs_without_norms(tmp_path: Path, records: list[Metrics]):
    """A run without norms, or without anything, makes a diagnosis, a report and a picture."""
    story = read_story(write_run(tmp_path / "run", records))
    assert story_lines(story)
    assert json.dumps(diagnosis(story))
    write_report([story], tmp_path / "report.html")
    write_picture([story], tmp_path / "report.png")


def test_diagnosis(troubled: Path):
    """The page names when, where, what, and what to try; the verdict is the gravest alert."""
    story = read_story(troubled)
    text = "\n".join(line.text for line in story_lines(story))
    assert verdict(story).startswith("Non-finite gradient, made at model.encoder.layer.1.mlp.bias")
    for part in ("step 200", "spike", "step 300", "where: model.encoder.layer.1.mlp.bias", "try: "):
        assert part in text
    plain = diagnosis(story)
    assert plain["severity"] == "error"
    assert [alert["rule"] for alert in plain["alerts"]] == ["spike", "non_finite"]
    healthy = read_story(write_run(troubled.parent / "healthy", training()))
    assert verdict(healthy) == "No trouble found"


def test_the_page_is_whole_and_asks_for_nothing(troubled: Path, tmp_path: Path):
    """One file, no address to load from, a policy that allows no request, its scripts by hash only."""
    page = write_report([read_story(troubled)], tmp_path / "report.html").read_text()
    head = page[: page.index("<style>")]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', head)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe-inline" not in policy[1].partition("script-src")[2].partition(";")[0]
    assert "connect-src" not in policy[1]
    assert not re.search(r"<(link|iframe|object|embed|script[^>]+src|img)\b", page.partition("<script>")[0])
    assert "{{" not in page.partition("<script>")[0]


def test_the_report_is_small(tmp_path: Path):
    """300 layers and 10,000 steps stay below 10 MB."""
    run = write_run(tmp_path / "big", training(300, 10_000, spike_at=6000))
    path = write_report([read_story(run)], tmp_path / "report.html")
    assert path.stat().st_size < 10e6


def test_hostile_texts_stay_inside_the_data_block(tmp_path: Path):
    """No text of a journal can end the data block, and no control or direction character reaches the page."""
    run = write_run(tmp_path / "run", hostile_records(), name=HOSTILE[0], project=HOSTILE[2])
    page = render_report([read_story(run)])
    block = page.partition('id="data">')[2].partition("</script>")[0]
    data = json.loads(block)
    assert data["runs"][0]["title"] == HOSTILE[0]
    assert data["runs"][0]["models"][0]["layers"][5] == r"\x1b[31mred\x1b]0;title\x07"
    assert not set("<>&") & set(block)
    assert "\u202e" not in page
    assert page.count("<script>window.pwned") == 0


def test_the_plotting_library_is_as_published():
    """The bundled file is plotly.js-cartesian-dist-min 4.1.1 from npm, unchanged, with its licence beside it."""
    assets = Path(tracker_bridge.report.__file__).parent / "_assets"
    digest = hashlib.sha256((assets / "plotly-cartesian.min.js").read_bytes()).hexdigest()
    assert digest == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert "MIT" in (assets / "plotly-LICENSE.txt").read_text()


def test_a_report_needs_a_run(tmp_path: Path):
    """No run is an error, and an unwritable path leaves nothing behind."""
    with pytest.raises(ValueError, match="at least one"):
        render_report([])
    story = read_story(write_run(tmp_path / "run", training(steps=20)))
    with pytest.raises(OSError, match="missing"):
        write_report([story], tmp_path / "missing" / "report.html")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError):
        write_report([story], tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_thinning_keeps_every_spike():
    """Of 10,000 samples in 700 bins the largest, the smallest, a zero and a NaN are all still there."""
    random = np.random.default_rng(0)
    values = np.exp(random.normal(0, 1, (10_000, 3)))
    values[1234, 0], values[4321, 1], values[777, 2], values[9999, 2] = 1e6, 1e-9, 0.0, np.nan
    present = np.ones(values.shape, dtype=bool)
    present[5000:5100, 0] = False
    scale = scale_of(values[present])
    smallest, largest = extremes(encode(values, present, scale), bin_starts(10_000, 700))
    assert np.nanmax(decode(largest, scale)[:, 0]) == pytest.approx(1e6, rel=1e-3)
    assert np.nanmin(decode(smallest, scale)[:, 1]) == pytest.approx(1e-9, rel=1e-3)
    assert (smallest[:, 2] == ZERO).sum() == 1
    assert np.isnan(decode(largest, scale)[-1, 2])
    assert (largest[:, 0] == ABSENT).any()


def test_codes_are_accurate():
    """Over twenty decades a code is right to a thousandth."""
    values = 10 ** np.random.default_rng(0).uniform(-15, 5, (1000, 2))
    scale = scale_of(values)
    decoded = decode(encode(values, np.ones(values.shape, dtype=bool), scale), scale)
    assert decoded == pytest.approx(values, rel=1e-3)


def test_lines_keep_their_extremes():
    """A thinned line has at most two points a bin, in order, with its extremes and its NaN."""
    values = np.sin(np.arange(20_000) / 50)
    values[7000], values[15_000] = 99.0, np.nan
    steps, thinned = thin(np.arange(20_000), values, 500)
    assert len(thinned) <= 1000
    assert np.all(np.diff(steps) > 0)
    assert np.nanmax(thinned) == 99.0
    assert np.isnan(thinned).sum() == 1


def test_pictures(troubled: Path, tmp_path: Path):
    """A PNG of one run and of several; too many, or an unknown format, is an error that says so."""
    story = read_story(troubled)
    for count in (1, 3):
        path = write_picture([story] * count, tmp_path / f"{count}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 20_000
    with pytest.raises(UsageError, match="1 to 6"):
        write_picture([story] * 7, tmp_path / "many.png")
    with pytest.raises(UsageError, match="nonsense"):
        write_picture([story], tmp_path / "picture.nonsense")


def test_a_resumed_run_that_went_back(tmp_path: Path):
    """Steps that repeat do not break a report or a picture."""
    records = [record for record in training(steps=150) if not isinstance(record, RunFinished)]
    records += [record for record in training(steps=100, seed=1) if isinstance(record, (NormVector, Metrics))]
    story = read_story(write_run(tmp_path / "run", records))
    write_report([story], tmp_path / "report.html")
    write_picture([story], tmp_path / "report.png")


def test_totals_of_a_stream():
    """The total is the record's own, or the norm of what was present."""
    total = norm_of()
    assert total(SeriesTable(0, 0, "gradients", ("a", "b"), (1, 1))) is None
    assert total(NormVector(0, 0, 0, pack_values([3.0, 4.0]))) == 5.0
    assert total(NormVector(0, 0, 0, pack_values([3.0, 4.0]), present=b"\x01")) == 3.0
    assert total(NormVector(0, 0, 0, pack_values([3.0, 4.0]), total=9.0)) == 9.0
    assert total(Metrics(0, 0, {"loss": 1.0})) is None
