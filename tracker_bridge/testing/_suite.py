"""`AdapterTests`: what every adapter must do, derived from its capabilities and read back from the tracker itself.

Each test writes a real journal, delivers it with the real courier, and compares what the tracker then has.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from tracker_bridge.adapter import Adapter, Capabilities, NameMap, RetryLater, flatten_params, param_text
from tracker_bridge.records import (
    Alert,
    AnyRecord,
    Artifact,
    Histogram,
    Metrics,
    NormVector,
    Params,
    RunFinished,
    SeriesTable,
    Tags,
    Text,
    pack_mask,
    pack_values,
)
from tracker_bridge.testing._doubles import FaultyAdapter
from tracker_bridge.testing._stored import Point, StoredRun
from tracker_bridge.testing._trial import Trial

SECOND = 1_000_000_000
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cf50070003810180b6d1d6a20000000049454e44ae426082"
)
NAMES = (
    "loss",
    "train/loss",
    "gradients/bert.encoder.layer.0.attention.self.query.weight",
    "Loss",
    "with space",
    "with-dash_and.dot:colon",
    "acc@1",
    "acc(1)",
    "acc[1]",
    "a,b;c=d&e?f#g%h+i",
    "quote'\"`back\\slash",
    "<b>html</b>",
    "tab\tnewline\nend",
    "nul\0char",
    "é",
    "e\u0301",
    "日本語/損失",
    "🔥/heat",
    "ﬁ",
    "",
    " ",
    ".",
    "..",
    "/",
    "/leading",
    "trailing/",
    "double//slash",
    "dots/../up",
    "dots/./here",
    "_",
    "acc_1",
    "acc_1-b6b0931f62d1",
    "sys/cpu",
    "_step",
    "step",
    "epoch",
    "note/text_summary",
    "tracker_bridge/run",
    "x" * 240,
    "y" * 250,
    "z" * 251,
    "long/" + "w" * 5_000,
    "long/" + "w" * 4_999 + "v",
    "ü" * 600,
)
"""Every class of characters, lengths around limits, names that meet when characters are replaced. No name here is a
path prefix of another; a lone surrogate cannot be in a journal."""


class AdapterTests:
    """Subclass it, say which adapter (`adapter_type`), its `options`, and how to `read_back` what the tracker stored.

    Class attributes say what is special: `statuses` (the bridge's status -> the tracker's word), `steps` (smallest and
    largest step it can hold exactly), `time_resolution` (seconds; None: it keeps no times), `context` (the keys of
    provenance that it shows). Fixtures of a subclass may prepare servers; `self.place` is the test's own folder.
    """

    adapter_type: ClassVar[type[Adapter[Any]]]
    statuses: ClassVar[Mapping[str, str]] = {name: name for name in ("finished", "failed", "killed", "crashed")}
    steps: ClassVar[tuple[int, int]] = (-(2**63), 2**63 - 1)
    time_resolution: ClassVar[float | None] = 0.001
    context: ClassVar[tuple[str, ...]] = ("script",)

    place: Path

    def options(self) -> Mapping[str, Any]:
        """The adapter's options as they would be in a configuration."""
        return {}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        """What the tracker has of the run that `open` described by `ids`."""
        raise NotImplementedError

    # --- machinery

    @pytest.fixture(autouse=True)
    def _prepare(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = tmp_path
        monkeypatch.chdir(tmp_path)

    @property
    def can(self) -> Capabilities:
        """The adapter's capabilities."""
        return self.adapter_type.capabilities

    def make_adapter(self) -> Adapter[Any]:
        """A new adapter with the suite's options."""
        return self.adapter_type(msgspec.convert(self.options(), self.adapter_type.options_type))

    def trial(self, **named: Any) -> Trial:
        """A new run."""
        return Trial(self.place / "queue", self.make_adapter, **named)

    def delivered(self, *records: AnyRecord, **named: Any) -> StoredRun:
        """What the tracker has after a run with these records, all of which it must have taken."""
        trial = self.trial(**named)
        trial.append(*records)
        state = trial.deliver()
        assert state.dropped == {}
        return self.read_back(trial.ids)

    def tracker_name(self, name: str) -> str:
        """The tracker's name of a series."""
        return NameMap(self.can.names)(name)

    def points(self, stored: StoredRun, name: str) -> Sequence[Point]:
        """The points of the series that was logged as `name`."""
        mapped = self.tracker_name(name)
        assert mapped in stored.metrics, (
            f"{name!r} should be stored as {mapped!r}; there are {sorted(stored.metrics)[:20]}"
        )
        return stored.metrics[mapped]

    def values(self, stored: StoredRun, name: str) -> list[tuple[float, float]]:
        """(step, value) of the series, NaN as the text `nan` so that it equals itself."""
        return [(point.step, _comparable(point.value)) for point in self.points(stored, name)]

    def exact(self, pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """(step, value) as the tracker must have them: its value type, NaN comparable."""
        narrow = self.can.value_type == "float32"
        return [(step, _comparable(float(np.float32(value)) if narrow else value)) for step, value in pairs]

    def time_ns(self, step: int) -> int:
        """When the tests log a step: one second and a bit apart."""
        return 1_750_000_000_123_456_789 + step * SECOND

    def metrics(self, step: float, values: Mapping[str, float], at: int | None = None) -> Metrics:
        """A record."""
        return Metrics(self.time_ns(int(step) if at is None else at), step, dict(values))

    # --- scalars

    def test_values_steps_and_times(self) -> None:
        """Each value has its step and the time at which it was logged."""
        values = [0.1, -1e-30, 3.5e20, 1 / 3, -0.0, 123456.789]
        names = ("loss", "gradients/layer.0.weight")
        stored = self.delivered(
            *(self.metrics(step, {names[0]: value, names[1]: -value}) for step, value in enumerate(values))
        )
        assert self.values(stored, names[0]) == self.exact(enumerate(values))
        assert self.values(stored, names[1]) == self.exact((step, -value) for step, value in enumerate(values))
        if self.time_resolution is not None:
            times = [point.time for point in self.points(stored, names[0])]
            expected = [self.time_ns(step) / 1e9 for step in range(len(values))]
            assert times == pytest.approx(expected, rel=0, abs=self.time_resolution)

    def test_norm_vectors(self) -> None:
        """Packed norms arrive as one series for each layer that was there, with the total and the skipped mark."""
        table = SeriesTable(self.time_ns(0), 0, "gradients", ("a.weight", "a.bias", "b.weight"), (4, 2, 4))
        mask = np.array([True, False, True])
        stored = self.delivered(
            table,
            NormVector(self.time_ns(0), 0, 0, pack_values([3.0, 1.0, 4.0]), total=5.0),
            NormVector(self.time_ns(1), 1, 0, pack_values([6.0, 0.0, 8.0]), pack_mask(mask), skipped=True),
        )
        assert self.values(stored, "gradients/a.weight") == [(0, 3.0), (1, 6.0)]
        assert self.values(stored, "gradients/a.bias") == [(0, 1.0)]
        assert self.values(stored, "gradients/total_norm") == self.exact([(0, 5.0), (1, 10.0)])
        assert self.values(stored, "gradients/skipped") == [(0, 0.0), (1, 1.0)]

    def test_values_that_are_not_finite(self) -> None:
        """NaN and both infinities can be told apart from each other and from numbers."""
        odd = (math.nan, math.inf, -math.inf)
        stored = self.delivered(
            self.metrics(0, {"loss": 1.0, "other": 1.0}),
            *(self.metrics(step, {"loss": value, "other": 2.0}) for step, value in enumerate(odd, 1)),
            self.metrics(4, {"loss": 4.0, "other": 4.0}),
        )
        native = {"native": odd, "nan": odd[:1], "none": ()}[self.can.non_finite]
        kept = [(0, 1.0), *((1 + odd.index(value), value) for value in native), (4, 4.0)]
        assert self.values(stored, "loss") == self.exact(kept)
        coded = [(step, float(step)) for step in (1, 2, 3) if odd[step - 1] not in native]
        if coded:
            assert self.values(stored, f"{self.tracker_name('loss')}/non_finite") == coded
        assert len(self.points(stored, "other")) == 5

    def test_large_and_small_values(self) -> None:
        """A finite value stays finite, and the smallest ones keep their order."""
        values = [1.7e308, -1.7e308, 1e39, 1e-40, 5e-324, 0.0]
        stored = self.delivered(*(self.metrics(step, {"v": value}) for step, value in enumerate(values)))
        got = [value for _, value in self.values(stored, "v")]
        assert len(got) == len(values)
        assert all(math.isfinite(value) for value in got)
        assert got[0] == max(got)
        assert got[1] == min(got)
        if self.can.value_type == "float64":
            assert got == values

    # --- names

    def test_names(self) -> None:
        """Every name is stored under a name of its own, and the original can be found."""
        stored = self.delivered(self.metrics(0, {name: float(number) for number, name in enumerate(NAMES)}))
        mapped = [self.tracker_name(name) for name in NAMES]
        assert len(set(mapped)) == len(NAMES)
        for number, name in enumerate(NAMES):
            assert self.values(stored, name) == [(0, float(number))], name
        renamed = {new: old for new, old in zip(mapped, NAMES, strict=True) if new != old}
        assert {new: stored.renamed.get(new) for new in renamed} == renamed

    def test_names_that_are_prefixes_of_others(self) -> None:
        """`a`, `a/b` and `a/b/c` are three series."""
        stored = self.delivered(self.metrics(0, {"a": 1.0, "a/b": 2.0, "a/b/c": 3.0}))
        assert [self.values(stored, name) for name in ("a", "a/b", "a/b/c")] == [[(0, 1.0)], [(0, 2.0)], [(0, 3.0)]]

    def test_names_are_stable_over_restarts(self) -> None:
        """A later process continues the same series whatever it logs first."""
        trial = self.trial()
        trial.append(self.metrics(0, {"acc@1": 1.0, "acc_1": 2.0}))
        trial.deliver(close=False)
        trial.append(self.metrics(1, {"acc_1": 3.0}), self.metrics(2, {"acc@1": 4.0}))
        trial.deliver()
        stored = self.read_back(trial.ids)
        assert self.values(stored, "acc@1") == [(0, 1.0), (2, 4.0)]
        assert self.values(stored, "acc_1") == [(0, 2.0), (1, 3.0)]

    # --- steps

    def test_late_steps(self) -> None:
        """A step that goes back hides nothing; it is kept where the tracker can, else dropped and counted."""
        order = [0, 1, 2, 6, 3, 5, 4, 7]
        trial = self.trial()
        trial.append(*(self.metrics(step, {"loss": float(step)}, at=at) for at, step in enumerate(order)))
        state = trial.deliver()
        got = self.values(self.read_back(trial.ids), "loss")
        if self.can.steps == "increasing":
            assert got == [(step, float(step)) for step in (0, 1, 2, 6, 7)]
            assert state.dropped == {"step_not_increasing": 3}
        else:
            assert sorted(got) == [(step, float(step)) for step in sorted(order)]
            assert state.dropped == {}

    def test_repeated_steps(self) -> None:
        """A second value at a step is kept or replaces the first, or is dropped and counted; no other point suffers."""
        trial = self.trial()
        values = [(0, 1.0), (1, 2.0), (1, 2.5), (2, 3.0)]
        trial.append(*(self.metrics(step, {"loss": value}, at=at) for at, (step, value) in enumerate(values)))
        state = trial.deliver()
        got = self.values(self.read_back(trial.ids), "loss")
        if self.can.steps == "increasing":
            assert got == [(0, 1.0), (1, 2.0), (2, 3.0)]
            assert state.dropped == {"step_not_increasing": 1}
        else:
            assert set(got) - {(1, 2.0)} == {(0, 1.0), (1, 2.5), (2, 3.0)}
            assert state.dropped == {}

    def test_series_of_different_calls_at_one_step(self) -> None:
        """Series logged by several calls, of several sets, at the same step are all kept."""
        stored = self.delivered(
            self.metrics(0, {"a": 1.0}),
            self.metrics(0, {"b": 2.0}),
            self.metrics(0, {"c": 3.0, "d": 4.0}),
            self.metrics(1, {"b": 5.0, "d": 6.0}),
            self.metrics(1, {"a": 7.0}),
        )
        assert self.values(stored, "a") == [(0, 1.0), (1, 7.0)]
        assert self.values(stored, "b") == [(0, 2.0), (1, 5.0)]
        assert self.values(stored, "d") == [(0, 4.0), (1, 6.0)]

    def test_fractional_steps(self) -> None:
        """Fractions are kept where the tracker can, else dropped and counted; they never land on another step."""
        trial = self.trial()
        trial.append(*(self.metrics(step, {"loss": step}, at=at) for at, step in enumerate((0.0, 0.5, 1.0, 1.25, 2.0))))
        state = trial.deliver()
        got = self.values(self.read_back(trial.ids), "loss")
        if self.can.step_type == "float":
            assert got == [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (1.25, 1.25), (2.0, 2.0)]
            assert state.dropped == {}
        else:
            assert got == [(0, 0.0), (1, 1.0), (2, 2.0)]
            assert state.dropped == {"fractional_step": 2}

    def test_extreme_steps(self) -> None:
        """The smallest and the largest step are stored exactly."""
        low, high = self.steps
        steps = [low, min(low + 1, 0), 0, 2**31, min(2**53, high), high]
        steps = sorted(set(steps))
        stored = self.delivered(*(self.metrics(step, {"v": float(at)}, at=at) for at, step in enumerate(steps)))
        assert [int(step) for step, _ in self.values(stored, "v")] == steps

    # --- params and tags

    PARAMS: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 1e-4,
        "epochs": 3,
        "amp": True,
        "none": None,
        "empty": "",
        "unicode": "ünï 日本 🔥",
        "betas": [0.9, 0.999],
        "optimizer": {"name": "adamw", "groups": {"decay": {"weight_decay": 0.01}}, "empty": {}},
        "key with spaces@and#marks": 1,
        "multi\nline": "one\ntwo",
    }

    def test_params_of_all_kinds(self) -> None:
        """Nested params are flattened (or nested) as declared, and numbers stay numbers where the tracker is typed."""
        stored = self.delivered(Params(self.time_ns(0), dict(self.PARAMS)), self.metrics(0, {"loss": 1.0}))
        expected = flatten_params(self.PARAMS, self.can.params.separator or "/")
        plain = [name for name in expected if name.replace("_", "").replace("/", "").replace(".", "").isalnum()]
        assert len(plain) >= 9
        for name in plain:
            value = expected[name]
            assert name in stored.params, f"{name!r} is not in {sorted(stored.params)}"
            if self.can.params.typed and isinstance(value, (bool, int, float)):
                assert stored.params[name] == value
                assert isinstance(stored.params[name], bool) == isinstance(value, bool)
            elif isinstance(value, str) or not self.can.params.typed:
                assert stored.params[name] == param_text(value)
        assert len(stored.params) >= len(expected) - 1
        if stored.full_params is not None:
            assert stored.full_params == self.PARAMS
        assert self.values(stored, "loss") == [(0, 1.0)]

    def test_params_that_are_not_finite(self) -> None:
        """NaN and infinities as params are stored so that they can be told apart."""
        odd = {"a": math.nan, "b": math.inf, "c": -math.inf}
        stored = self.delivered(Params(self.time_ns(0), odd))
        texts = [str(stored.params[name]).lower().replace("infinity", "inf") for name in odd]
        assert texts == ["nan", "inf", "-inf"]

    def test_long_params(self) -> None:
        """A value beyond the limit is cut visibly, the whole is kept, and metrics do not suffer."""
        params = {"long": "x" * 9_000, "huge": "0123456789" * 300_000, "short": "s"}
        stored = self.delivered(Params(self.time_ns(0), params), self.metrics(0, {"loss": 1.0}))
        assert self.values(stored, "loss") == [(0, 1.0)]
        assert stored.params["short"] == "s"
        limit = self.can.params.max_value_length
        for name, value in params.items():
            text = str(stored.params[name])
            if text != value:
                assert limit is None or len(text) <= limit
                assert text.startswith(value[:200])
                assert "cut" in text or "..." in text
                assert stored.full_params is not None
        if stored.full_params is not None:
            assert stored.full_params == params

    def test_params_changed_on_resume(self) -> None:
        """A changed param shows its new value, or a visible note of it; new ones and metrics are stored."""
        trial = self.trial()
        trial.append(Params(self.time_ns(0), {"lr": 1, "same": "s"}), self.metrics(0, {"loss": 1.0}))
        trial.deliver(close=False)
        trial.append(Params(self.time_ns(1), {"lr": 2, "same": "s", "new": "n"}), self.metrics(1, {"loss": 2.0}))
        state = trial.deliver()
        stored = self.read_back(trial.ids)
        assert state.dropped == {}
        assert str(stored.params["new"]) == "n"
        assert str(stored.params["same"]) == "s"
        if self.can.params.mutable:
            assert str(stored.params["lr"]) == "2"
        else:
            assert str(stored.params["lr"]) == "1"
            assert {key: str(value) for key, value in stored.changed_params.items()} == {"lr": "2"}
        assert self.values(stored, "loss") == [(0, 1.0), (1, 2.0)]

    def test_many_params(self) -> None:
        """More params than a request takes are all stored."""
        params = {f"p{number:04}": number for number in range(250)}
        stored = self.delivered(Params(self.time_ns(0), params))
        assert {name: str(value) for name, value in stored.params.items() if name in params} == {
            name: str(value) for name, value in params.items()
        }

    def test_tags(self) -> None:
        """Plain and key/value tags are stored in the tracker's form; removed ones are gone."""
        if self.can.tags.form == "none":
            pytest.skip("the tracker has no tags")
        stored = self.delivered(
            Tags(self.time_ns(0), {"gradient_tracking": None, "team": "nlp", "old": None, "ü ber": None}),
            Tags(self.time_ns(1), {"late": None}, ("old",) if self.can.tags.removable else ()),
        )
        expected = {"gradient_tracking": None, "team": "nlp", "late": None, "ü ber": None}
        assert {tag: stored.tags.get(tag, "missing") for tag in expected} == expected
        if self.can.tags.removable:
            assert "old" not in stored.tags

    # --- texts, histograms, files, alerts

    def test_texts(self) -> None:
        """Texts keep their name, step and content; those without a step are all kept under their name's own order."""
        stored = self.delivered(
            Text(self.time_ns(0), "notes", "first **line**\nsecond ü 🔥"),
            Text(self.time_ns(1), "samples", "at three", 3),
            Text(self.time_ns(2), "samples", "at five", 5),
            self.metrics(0, {"samples": 1.0}),
        )
        assert [text for _, text in stored.texts["notes"]] == ["first **line**\nsecond ü 🔥"]
        assert [(step, text) for step, text in stored.texts["samples"]] == [(3, "at three"), (5, "at five")]
        assert self.values(stored, "samples") == [(0, 1.0)]

    def test_histograms(self) -> None:
        """A histogram's edges and counts are stored, and a scalar of the same name is kept beside it."""
        edges, counts = [-1.0, 0.0, 0.5, 2.0], [1.0, 5.0, 2.0]
        stored = self.delivered(
            Histogram(self.time_ns(0), "gradients/w", 0, pack_values(edges), pack_values(counts)),
            Histogram(self.time_ns(1), "gradients/w", 1, pack_values(edges), pack_values([0.0, 0.0, 9.0])),
            self.metrics(0, {"gradients/w": 1.5}),
        )
        got = [(step, list(e), list(c)) for step, e, c in stored.histograms["gradients/w"]]
        assert got == [(0, edges, counts), (1, edges, [0.0, 0.0, 9.0])]
        assert self.values(stored, "gradients/w") == [(0, 1.5)]

    def test_artifacts(self) -> None:
        """A file is stored with its content, or mentioned by name where the tracker takes no files."""
        trial = self.trial()
        trial.paths.files.mkdir()
        (trial.paths.files / "1-notes.bin").write_bytes(b"\0\1\2 content")
        trial.append(Artifact(self.time_ns(0), "reports/notes.bin", "files/1-notes.bin"))
        assert trial.deliver().dropped == {}
        stored = self.read_back(trial.ids)
        assert "reports/notes.bin" in stored.artifacts
        if "artifact" in self.can.media:
            assert stored.artifacts["reports/notes.bin"] == b"\0\1\2 content"

    def test_images(self) -> None:
        """A PNG is stored as an image, or as the file it is."""
        trial = self.trial()
        trial.paths.files.mkdir()
        (trial.paths.files / "1-plot.png").write_bytes(PNG)
        trial.append(Artifact(self.time_ns(0), "plot.png", "files/1-plot.png", 4, "image/png"))
        assert trial.deliver().dropped == {}
        stored = self.read_back(trial.ids)
        content = [value for name, value in stored.artifacts.items() if name.endswith("plot.png")]
        assert len(content) == 1
        if self.can.media & {"image", "artifact"}:
            assert content == [PNG]

    def test_alerts(self) -> None:
        """An alert is delivered beside its point and disturbs nothing."""
        stored = self.delivered(
            self.metrics(0, {"loss": 1.0}),
            Alert(self.time_ns(0), "explosion", 0, "critical", "Exploding", "The norm of `w` grew.", ("w",)),
        )
        assert self.values(stored, "health/explosion") == [(0, 1.0)]
        assert self.values(stored, "loss") == [(0, 1.0)]

    # --- the run

    @pytest.mark.parametrize("status", ["finished", "failed", "killed", "crashed"])
    def test_status(self, status: str) -> None:
        """The tracker shows how the run ended."""
        stored = self.delivered(self.metrics(0, {"loss": 1.0}), RunFinished(self.time_ns(1), status))
        assert stored.status == self.statuses[status]

    def test_context_is_that_of_the_training_script(self) -> None:
        """What the tracker shows of script, host and user comes from the training process."""
        facts = {
            "script": "train_bert.py",
            "arguments": ["--lr", "0.1"],
            "host": "trainer-7",
            "user": "somebody",
            "git_commit": "0123456789abcdef0123456789abcdef01234567",
        }
        stored = self.delivered(self.metrics(0, {"loss": 1.0}), provenance=facts)
        assert {key: stored.context.get(key) for key in self.context} == {key: facts[key] for key in self.context}

    def test_resume_continues_the_same_run(self) -> None:
        """A run that goes on after it had ended is one run, with all points and its last status."""
        trial = self.trial()
        trial.append(
            *(self.metrics(step, {"loss": float(step)}) for step in range(5)), RunFinished(self.time_ns(5), "failed")
        )
        trial.deliver()
        before = dict(trial.ids)
        trial.append(
            *(self.metrics(step, {"loss": float(step)}) for step in range(5, 8)),
            RunFinished(self.time_ns(9), "finished"),
        )
        trial.deliver()
        assert dict(trial.ids) == before
        stored = self.read_back(trial.ids)
        assert stored.runs == 1
        assert self.values(stored, "loss") == [(step, float(step)) for step in range(8)]
        assert stored.status == self.statuses["finished"]

    def test_delivery_in_parts(self) -> None:
        """Many short openings, as with `sync` while the run goes on, give one run with every point."""
        trial = self.trial()
        for step in range(4):
            trial.append(self.metrics(step, {"loss": float(step), f"only/{step}": 1.0}))
            trial.deliver(close=step == 3)
        stored = self.read_back(trial.ids)
        assert stored.runs == 1
        assert self.values(stored, "loss") == [(step, float(step)) for step in range(4)]
        assert all(self.values(stored, f"only/{step}") == [(step, 1.0)] for step in range(4))

    def test_two_runs_stay_apart(self) -> None:
        """Runs with the same name, project and experiment are two runs."""
        trials = [self.trial(run_id=f"trial-{number}") for number in (1, 2)]
        for number, trial in enumerate(trials):
            trial.append(self.metrics(0, {"loss": float(number)}))
            trial.deliver()
        assert [self.values(self.read_back(trial.ids), "loss") for trial in trials] == [[(0, 0.0)], [(0, 1.0)]]

    def test_run_without_name_project_or_experiment(self) -> None:
        """Nothing but an id is needed."""
        stored = self.delivered(self.metrics(0, {"loss": 1.0}), name=None, project=None, experiment=None)
        assert self.values(stored, "loss") == [(0, 1.0)]

    # --- faults

    def _everything(self) -> list[AnyRecord]:
        edges, counts = pack_values([0.0, 1.0, 2.0]), pack_values([3.0, 4.0])
        records: list[AnyRecord] = [Params(self.time_ns(0), {"lr": 0.1}), Tags(self.time_ns(0), {"tag": None})]
        for step in range(10):
            records.append(self.metrics(step, {"loss": float(step), "acc": step / 10}))
            records.append(Histogram(self.time_ns(step), "hist", step, edges, counts))
            records.append(Text(self.time_ns(step), "text", f"text {step}", step))
        return [*records, self.metrics(4, {"loss": -4.0}, at=11), Text(self.time_ns(12), "end", "no step")]

    def _check_everything(self, stored: StoredRun) -> None:
        late = [] if self.can.steps == "increasing" else [(4, -4.0)]
        losses = [(step, float(step)) for step in range(10)] + late
        accuracies = self.exact((step, step / 10) for step in range(10))
        if self.can.duplicates == "ignored":
            assert sorted(self.values(stored, "loss")) == sorted(losses)
            assert self.values(stored, "acc") == accuracies
            assert [text for _, text in stored.texts["end"]] == ["no step"]
            assert [step for step, _ in stored.texts["text"]] == list(range(10))
            assert [step for step, _, _ in stored.histograms["hist"]] == list(range(10))
        else:
            assert set(self.values(stored, "loss")) >= set(losses)
            assert set(self.values(stored, "acc")) == set(accuracies)
        assert "tag" in stored.tags or self.can.tags.form == "none"
        assert stored.runs == 1

    def test_delivery_again_makes_no_visible_duplicate(self) -> None:
        """After a crash that lost the cursor everything is sent again, and the tracker looks as if it had not been."""
        trial = self.trial()
        trial.append(*self._everything())
        trial.deliver(close=False)
        self._check_everything(self.read_back(trial.ids))
        trial.forget_progress()
        trial.append(self.metrics(20, {"loss": 20.0}))
        trial.deliver()
        stored = self.read_back(trial.ids)
        assert self.values(stored, "loss")[-1] == (20, 20.0)
        kept = {name: [point for point in points if point.step != 20] for name, points in stored.metrics.items()}
        self._check_everything(dataclasses.replace(stored, metrics=kept))

    def test_crash_before_the_flush_makes_no_visible_duplicate(self) -> None:
        """The adapter dies with a batch written and not flushed; the next one gets that batch again."""
        trial = self.trial()
        trial.append(*self._everything())

        hangs = itertools.repeat(RetryLater("hangs", after=0.05))
        with pytest.raises(AssertionError, match="hangs"):
            trial.deliver(close=False, adapter=FaultyAdapter(self.make_adapter(), {"flush": hangs}), timeout=1.0)
        with warnings.catch_warnings():
            # A dead process closes nothing; here the files of the abandoned adapter are closed by the collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        trial.deliver()
        self._check_everything(self.read_back(trial.ids))

    def test_retries(self) -> None:
        """What the tracker did not take at first arrives once, when it takes it."""
        trial = self.trial()
        trial.append(*self._everything())
        busy = RetryLater("busy", after=0.0)
        faults: dict[Any, list[Exception | None]] = {
            "open": [busy],
            "write": [busy, busy],
            "flush": [busy],
            "close": [busy],
        }
        adapter = FaultyAdapter(self.make_adapter(), faults)
        trial.deliver(adapter=adapter)
        assert adapter.calls["open"] == 2
        assert adapter.calls["write"] >= 3
        self._check_everything(self.read_back(trial.ids))

    # --- sizes

    def test_many_series_in_one_step(self) -> None:
        """2,500 metrics at one step are all stored; every 25th is read back whole, which may take a request each."""
        values = {f"gradients/layer.{number:04}.weight": float(number) for number in range(2_500)}
        stored = self.delivered(self.metrics(0, values), self.metrics(1, values))
        assert set(stored.metrics) >= {self.tracker_name(name) for name in values}
        some = dict(list(values.items())[::25])
        got = {name: self.values(stored, name) for name in some}
        assert got == {name: [(0, value), (1, value)] for name, value in some.items()}

    def test_ten_thousand_points(self) -> None:
        """100 series over 100 steps are all stored."""
        names = [f"s/{number:03}" for number in range(100)]
        stored = self.delivered(*(self.metrics(step, {name: float(step) for name in names}) for step in range(100)))
        expected = [(step, float(step)) for step in range(100)]
        assert all(self.values(stored, name) == expected for name in names)

    # --- manners

    def test_importing_the_adapter_imports_no_sdk(self) -> None:
        """Listing and configuring backends needs no tracker to be installed."""
        modules = [requirement.module for requirement in self.adapter_type.requires]
        code = (
            f"import sys, {self.adapter_type.__module__}\n"
            f"found = [name for name in {[*modules, 'torch']!r} if name in sys.modules]\n"
            "sys.exit(f'imported: {found}' if found else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr

    def test_unknown_options_are_refused(self) -> None:
        """A misspelt option is an error that names it."""
        with pytest.raises(msgspec.ValidationError, match="no_such_option"):
            msgspec.convert({**self.options(), "no_such_option": 1}, self.adapter_type.options_type)

    def test_nothing_is_printed(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Delivery leaves stdout to the script."""
        self.delivered(self.metrics(0, {"loss": 1.0}), RunFinished(self.time_ns(1), "finished"))
        assert capfd.readouterr().out == ""


def _comparable(value: float) -> Any:
    return "nan" if math.isnan(value) else value
