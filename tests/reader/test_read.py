"""`read(run_dir)`: everything that was logged comes back, from the directory alone."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from tracker_bridge.journal import JournalWriter
from tracker_bridge.reader import read
from tracker_bridge.records import (
    Alert,
    AnyRecord,
    Artifact,
    Dropped,
    Metrics,
    NormVector,
    Params,
    RunFinished,
    RunStarted,
    SeriesTable,
    Step,
    Tags,
    Text,
    pack_mask,
    pack_values,
)
from tracker_bridge.rundir import Manifest, NotARunError, Owner, RunPaths, this_process, write_json


def _run(folder: Path, *records: AnyRecord, max_disk: int = 2 << 30, **manifest: object) -> Path:
    """A run directory with these records."""
    folder.mkdir(exist_ok=True)
    write_json(RunPaths(folder).manifest, Manifest(run_id="r", created_ns=1, **manifest))  # type: ignore[arg-type]
    with JournalWriter.recover(RunPaths(folder).journal, "r", max_disk=max_disk) as writer:
        for record in records:
            assert writer.append(record) is not None
    return folder


def _norms(
    step: Step, values: list[float], table: int = 0, present: list[bool] | None = None, **more: object
) -> NormVector:
    mask = None if present is None else pack_mask(np.array(present))
    return NormVector(10, step, table, pack_values(values), mask, **more)  # type: ignore[arg-type]


def _table(names: str, table: int = 0, kind: str = "gradients", norm_type: float = 2.0) -> SeriesTable:
    return SeriesTable(1, table, kind, tuple(names), (1,) * len(names), norm_type)


def test_identity_params_and_tags(tmp_path: Path) -> None:
    """Params are merged nested and tags are what they are now."""
    run = read(
        _run(
            tmp_path / "r",
            Params(1, {"optimizer": {"name": "adam", "lr": 0.1}, "seed": 1}),
            Tags(2, {"a": None, "b": "x"}),
            Params(3, {"optimizer": {"lr": 0.2}}),
            Tags(4, {"c": None}, ("a",)),
        )
    )
    assert (run.run_id, run.dir) == ("r", tmp_path / "r")
    assert run.params == {"optimizer": {"name": "adam", "lr": 0.2}, "seed": 1}
    assert run.tags == {"b": "x", "c": None}


def test_metrics_keep_order_types_and_non_finite_values(tmp_path: Path) -> None:
    """Repeated and backward steps stay, integers stay integers, a fraction makes only its own series float."""
    big = 2**62 + 1
    run = read(
        _run(
            tmp_path / "r",
            Metrics(1, 5, {"loss": 1.5, "acc": math.nan}),
            Metrics(2, 3, {"loss": math.inf}),
            Metrics(3, 3, {"loss": -math.inf}),
            Metrics(4, 3.5, {"acc": 0.25}),
            Metrics(5, big, {"loss": 1e-300}),
        )
    )
    metrics = run.metrics()
    assert list(metrics) == ["loss", "acc"]
    steps, values = metrics["loss"]
    assert steps.dtype == np.int64
    assert values.dtype == np.float64
    assert steps.tolist() == [5, 3, 3, big]
    assert values.tolist() == [1.5, math.inf, -math.inf, 1e-300]
    steps, values = metrics["acc"]
    assert steps.dtype == np.float64
    assert steps.tolist() == [5.0, 3.5]
    np.testing.assert_array_equal(values, [math.nan, 0.25])


def test_gradient_norms_tell_absent_from_nan(tmp_path: Path) -> None:
    """An absent layer is NaN and not present; a NaN that was measured is present."""
    table = read(
        _run(
            tmp_path / "r",
            _table("abc"),
            _norms(10, [3.0, 4.0, 9.0], present=[True, True, False], clip_coefficient=0.5, max_norm=1.0),
            _norms(20, [math.nan, 1.0, 2.0], skipped=True, total=7.0, post_clip=True),
        )
    ).gradient_norms()
    assert table.names == ("a", "b", "c")
    assert (table.steps.tolist(), table.steps.dtype) == ([10, 20], np.int64)
    np.testing.assert_array_equal(table.values, [[3, 4, math.nan], [math.nan, 1, 2]])
    np.testing.assert_array_equal(table.present, [[True, True, False], [True, True, True]])
    np.testing.assert_allclose(table.total, [5.0, 7.0])
    assert table.skipped.tolist() == [False, True]
    assert table.post_clip.tolist() == [False, True]
    np.testing.assert_array_equal(table.clip_coefficient, [0.5, math.nan])
    np.testing.assert_array_equal(table.max_norm, [1.0, math.nan])
    assert table.times_ns.tolist() == [10, 10]
    assert len(table) == 2


@pytest.mark.parametrize(
    ("norm_type", "values", "total"),
    [
        (2.0, [3.0, 4.0], 5.0),
        (1.0, [3.0, 4.0], 7.0),
        (math.inf, [3.0, 4.0], 4.0),
        (2.0, [3e200, 4e200], 5e200),
        (2.0, [3e-200, 4e-200], 5e-200),
        (2.0, [0.0, 0.0], 0.0),
        (2.0, [math.inf, 1.0], math.inf),
        (2.0, [math.nan, 1.0], math.nan),
        (math.inf, [math.nan, 1.0], math.nan),
        (2.0, [math.nan, math.inf], math.nan),
    ],
)
def test_a_total_that_was_not_recorded_is_the_norm_of_the_concatenation(
    tmp_path: Path, norm_type: float, values: list[float], total: float
) -> None:
    """For each norm type, without overflow, and non-finite where a part is."""
    table = read(_run(tmp_path / "r", _table("ab", norm_type=norm_type), _norms(1, values))).gradient_norms()
    np.testing.assert_allclose(table.total, [total], rtol=1e-14)


def test_several_tables_are_merged_by_name(tmp_path: Path) -> None:
    """A resumed run may add columns; two models at one step share a row; a step that is repeated does not."""
    table = read(
        _run(
            tmp_path / "r",
            _table("ab", 0),
            _table("c", 1),
            _norms(1, [1.0, 2.0], 0),
            _norms(1, [2.0], 1),
            _norms(2, [3.0, 4.0], 0),
            RunStarted(1, "r", 2, 1, "h"),
            _table("bd", 0),
            _norms(2, [5.0, 6.0], 0),
            _norms(3, [7.0, 8.0], 0),
        )
    ).gradient_norms()
    nan = math.nan
    assert table.names == ("a", "b", "c", "d")
    assert table.steps.tolist() == [1, 2, 2, 3]
    np.testing.assert_array_equal(table.values, [[1, 2, 2, nan], [3, 4, nan, nan], [nan, 5, nan, 6], [nan, 7, nan, 8]])
    np.testing.assert_allclose(table.total[:2], [3.0, 5.0])
    np.testing.assert_array_equal(table.present, ~np.isnan(table.values))


def test_kinds_are_kept_apart(tmp_path: Path) -> None:
    """Activations are no gradients, also where their tables share names."""
    run = read(
        _run(
            tmp_path / "r",
            _table("ab", 0),
            _table("a", 1, "activations"),
            _norms(1, [1.0, 2.0], 0),
            _norms(1, [3.0], 1),
        )
    )
    assert run.gradient_norms().values.tolist() == [[1.0, 2.0]]
    assert run.norms("activations").values.tolist() == [[3.0]]
    assert run.norms("parameters").values.shape == (0, 0)


def test_fractional_steps_make_the_table_float(tmp_path: Path) -> None:
    """And large integers stay exact where all are integers."""
    big = 2**62 + 1
    assert read(_run(tmp_path / "a", _table("a"), _norms(big, [1.0]))).gradient_norms().steps.tolist() == [big]
    table = read(_run(tmp_path / "b", _table("a"), _norms(1, [1.0]), _norms(1.5, [1.0]))).gradient_norms()
    assert table.steps.dtype == np.float64


def test_texts_artifacts_alerts_attempts_and_drops(tmp_path: Path) -> None:
    """The rest of the records, each in its own list."""
    alert = Alert(6, "explosion", 3, "error", "t", "x", ("a",), {"k": 1})
    run = read(
        _run(
            tmp_path / "r",
            RunStarted(1, "r", 1, 7, "h", {"git": "abc"}),
            Text(2, "note", "hello"),
            Artifact(3, "model", "files/m.pt"),
            RunFinished(4, "killed"),
            RunStarted(5, "r", 2, 8, "h"),
            alert,
            Dropped(7, {"disk_full": 2}),
            Dropped(8, {"disk_full": 1, "io_error": 4}),
        )
    )
    assert [text.text for text in run.texts()] == ["hello"]
    assert [artifact.path for artifact in run.artifacts()] == ["files/m.pt"]
    assert run.alerts() == [alert]
    assert [(attempt.number, attempt.pid, attempt.status) for attempt in run.attempts] == [
        (1, 7, "killed"),
        (2, 8, None),
    ]
    assert run.attempts[0].finished_ns == 4
    assert run.attempts[0].provenance == {"git": "abc"}
    assert run.dropped == {"disk_full": 3, "io_error": 4}
    assert run.gaps == ()


def test_a_run_that_lost_its_beginning_to_the_limit_is_still_understood(tmp_path: Path) -> None:
    """Params, tags and names come from the snapshots; what is gone is told."""
    many = [_norms(step, [float(step)] * 30) for step in range(3000)]
    start = (Params(1, {"lr": 1}), Tags(1, {"t": None}), _table("abcdefghijklmnopqrstuvwxyzABCD"))
    run = read(_run(tmp_path / "r", *start, *many, max_disk=256 << 10))
    table = run.gradient_norms()
    assert (run.params, run.tags) == ({"lr": 1}, {"t": None})
    assert len(table.names) == 30
    assert table.steps.tolist() == list(range(3000 - len(table), 3000))
    assert 100 < len(table) < 3000
    assert [gap.reason for gap in run.gaps] == ["max_disk"]


def test_status(tmp_path: Path) -> None:
    """The manifest's status; while that says `running`, what the journal and the process say."""
    started = RunStarted(1, "r", 1, 1, "h")
    dead = Owner(pid=2**22 - 3, host=this_process().host, started=1)
    assert read(_run(tmp_path / "a", status="failed")).status == "failed"
    assert read(_run(tmp_path / "b", started, owner=this_process())).status == "running"
    assert read(_run(tmp_path / "c", started, owner=dead)).status == "crashed"
    assert read(_run(tmp_path / "d", started, RunFinished(2, "finished"), owner=dead)).status == "finished"


def test_a_run_that_lives_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    """Each call sees what is there then."""
    folder = _run(tmp_path / "r")
    run = read(folder)
    with JournalWriter.recover(folder / "journal", "r") as writer:
        assert run.metrics() == {}
        writer.append(Metrics(1, 1, {"loss": 1.0}))
        assert run.metrics()["loss"][0].tolist() == [1]
        writer.append(Metrics(1, 2, {"loss": 1.0}))
        assert run.metrics()["loss"][0].tolist() == [1, 2]


def test_what_is_not_a_run_is_a_clear_error(tmp_path: Path) -> None:
    """The error names the directory, whether it is missing, empty or holds something else."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("[]")
    for name in ("missing", "empty", "other"):
        with pytest.raises(NotARunError, match=name):
            read(tmp_path / name)


def test_a_run_without_a_journal_is_empty(tmp_path: Path) -> None:
    """A run whose process died before its first record, or whose journal was pruned."""
    write_json(tmp_path / "run.json", Manifest(run_id="r", created_ns=1))
    run = read(os.fspath(tmp_path))
    assert (run.metrics(), run.params, run.attempts, len(run.gradient_norms())) == ({}, {}, (), 0)
