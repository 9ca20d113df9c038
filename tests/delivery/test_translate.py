"""Translation: the same records become, for each tracker, what it can hold - and nothing goes without being counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tracker_bridge.adapter import Capabilities, Item, NameRule, ParamsItem, Row, TagsItem
from tracker_bridge.delivery import Route, Translator
from tracker_bridge.records import (
    AnyRecord,
    Metrics,
    NormVector,
    Params,
    SeriesTable,
    Snapshot,
    Tags,
    pack_mask,
    pack_values,
)

NAMES = ("layer.0.weight", "layer.0.bias", "layer.1.weight", "head.weight")
TABLE = SeriesTable(0, 7, "gradients", NAMES, (4, 2, 4, 2))


def translate(*records: AnyRecord, can: Capabilities | None = None, **route: Any) -> tuple[list[Item], Translator]:
    translator = Translator(can or Capabilities(), Route(**route), Path("/nowhere"))
    return [item for number, record in enumerate(records) for item in translator(number, record)], translator


def vector(step: int, values: list[float], present: list[bool] | None = None, **more: Any) -> NormVector:
    mask = pack_mask(np.array(present)) if present else None
    return NormVector(step * 10, step, 7, pack_values(values), mask, **more)


def points(items: list[Item]) -> dict[str, list[tuple[Any, float]]]:
    found: dict[str, list[tuple[Any, float]]] = {}
    for item in items:
        if isinstance(item, Row):
            for name, value in zip(item.names, item.values.tolist(), strict=True):
                found.setdefault(name, []).append((item.step, value))
    return found


def test_norm_vector_becomes_one_row_with_the_series_of_the_design() -> None:
    """Per-parameter series and the four of the whole, in one row."""
    items, _ = translate(TABLE, vector(3, [3.0, 4.0, 0.0, math.inf], clip_coefficient=0.5, total=7.0))
    assert len(items) == 1
    assert points(items) == {
        "gradients/layer.0.weight": [(3, 3.0)],
        "gradients/layer.0.bias": [(3, 4.0)],
        "gradients/layer.1.weight": [(3, 0.0)],
        "gradients/head.weight": [(3, math.inf)],
        "gradients/total_norm": [(3, 7.0)],
        "gradients/skipped": [(3, 0.0)],
        "gradients/non_finite_layers": [(3, 1.0)],
        "gradients/clip_coefficient": [(3, 0.5)],
    }


def test_total_is_computed_from_the_layers_where_the_record_has_none() -> None:
    """3, 4 and an absent layer make 5."""
    items, _ = translate(TABLE, vector(0, [3.0, 4.0, 99.0, 0.0], [True, True, False, True]))
    assert points(items)["gradients/total_norm"] == [(0, 5.0)]
    assert "gradients/layer.1.weight" not in points(items)


def test_rows_of_one_table_share_their_names_tuple() -> None:
    """Adapters cache by identity, so the same series must come with the same object."""
    items, _ = translate(TABLE, vector(0, [1.0] * 4), vector(1, [2.0] * 4))
    first, second = items
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert first.names is second.names


def test_route_groups_thins_prefixes_and_renames() -> None:
    """Blocks every 10 steps for one backend, from the journal that holds every parameter every step."""
    records = [vector(step, [3.0, 4.0, 1.0, 2.0]) for step in range(0, 40, 5)]
    items, _ = translate(
        TABLE,
        *records,
        Metrics(0, 1, {"loss": 1.0}),
        group_by="block",
        every_n_steps=10,
        prefix="run/",
        rename={"loss": "train_loss"},
    )
    found = points(items)
    assert found["run/gradients/layer.0"] == [(0, 5.0), (10, 5.0), (20, 5.0), (30, 5.0)]
    assert found["run/train_loss"] == [(1, 1.0)]


def test_cadence_takes_the_first_vector_of_each_window() -> None:
    """Steps 3, 6, 9, ... under every 10 steps: one in each ten, not only the common multiples."""
    items, _ = translate(TABLE, *(vector(step, [1.0] * 4) for step in range(3, 60, 3)), every_n_steps=10)
    assert [step for step, _ in points(items)["gradients/head.weight"]] == [3, 12, 21, 30, 42, 51]


def test_include_and_exclude_match_with_and_without_the_gradients_part() -> None:
    """`layer.*` means the layer's gradients; excludes win."""
    items, _ = translate(TABLE, vector(0, [1.0] * 4), include=("layer.*",), exclude=("*.bias",))
    assert sorted(points(items)) == ["gradients/layer.0.weight", "gradients/layer.1.weight"]


def test_increasing_steps_are_enforced_per_series_and_counted() -> None:
    """A tracker that takes only growing steps gets only those; each value left out is counted."""
    can = Capabilities(steps="increasing")
    items, translator = translate(
        Metrics(0, 1, {"a": 1.0}),
        Metrics(0, 5, {"a": 5.0, "b": 5.0}),
        Metrics(0, 3, {"a": 3.0, "c": 3.0}),
        Metrics(0, 5, {"b": 6.0}),
        can=can,
    )
    assert points(items) == {"a": [(1, 1.0), (5, 5.0)], "b": [(5, 5.0)], "c": [(3, 3.0)]}
    assert translator.dropped == {"step_not_increasing": 2}


def test_late_rows_are_marked_where_the_tracker_keeps_them_apart() -> None:
    """A late value comes in a row of its own; the rest of its row stays in time."""
    items, _ = translate(
        Metrics(0, 5, {"a": 5.0}), Metrics(0, 3, {"a": 3.0, "b": 3.0}), can=Capabilities(steps="late_run")
    )
    rows = [(item.names, item.late) for item in items if isinstance(item, Row)]
    assert rows == [(("a",), False), (("a",), True), (("b",), False)]


def test_fractional_steps_are_never_made_to_collide() -> None:
    """1.2 and 1.7 both become 1 by truncation; here they are kept or counted."""
    records = Metrics(0, 1.2, {"a": 1.0}), Metrics(0, 1.7, {"a": 2.0}), Metrics(0, 2.0, {"a": 3.0})
    whole, counted = translate(*records)
    assert points(whole) == {"a": [(2, 3.0)]}
    assert counted.dropped == {"fractional_step": 2}
    kept, _ = translate(*records, can=Capabilities(step_type="float"))
    assert points(kept) == {"a": [(1.2, 1.0), (1.7, 2.0), (2.0, 3.0)]}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("native", {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}),
        ("nan", {"a": math.nan, "d": 1.0, "b/non_finite": 2.0, "c/non_finite": 3.0}),
        ("none", {"d": 1.0, "a/non_finite": 1.0, "b/non_finite": 2.0, "c/non_finite": 3.0}),
    ],
)
def test_non_finite_values_stay_apart_and_never_become_finite(rule: Any, expected: dict[str, float]) -> None:
    """What the tracker cannot hold goes to a companion series that says what it was."""
    record = Metrics(0, 0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    items, _ = translate(record, can=Capabilities(non_finite=rule))
    found = {name: values[0][1] for name, values in points(items).items()}
    assert found == pytest.approx(expected, nan_ok=True)


def test_names_are_mapped_and_the_original_can_be_told() -> None:
    """Two names that look alike after mapping stay two series."""
    rule = NameRule(allowed=r"[/\w.\- :]", path=True, max_length=250)
    items, translator = translate(
        Metrics(0, 0, {"acc@1": 1.0, "acc_1": 2.0, "acc(1": 3.0}), can=Capabilities(names=rule)
    )
    assert len(points(items)) == 3
    assert set(translator.take_renamed().values()) == {"acc@1", "acc(1"}
    assert not translator.take_renamed()


def test_params_and_tags_come_as_changes() -> None:
    """An adapter hears of a param once, and again only when it changes; NaN does not change all the time."""
    items, _ = translate(
        Params(0, {"lr": 0.1, "opt": {"name": "adam", "eps": math.nan}}),
        Params(0, {"lr": 0.1, "opt": {"eps": math.nan}}),
        Params(0, {"lr": 0.2, "opt": {"name": "adam", "beta": 0.9}}),
        Tags(0, {"a": None, "b": "1"}),
        Tags(0, {"a": None}, ("b", "never")),
    )
    params = [dict(item.params) for item in items if isinstance(item, ParamsItem)]
    assert params[1] == {"lr": 0.2, "opt": {"beta": 0.9}}
    assert len(params) == 2
    tags = [(dict(item.add), item.remove, dict(item.now)) for item in items if isinstance(item, TagsItem)]
    assert tags == [({"a": None, "b": "1"}, (), {"a": None, "b": "1"}), ({}, ("b",), {"a": None})]


def test_snapshot_restates_without_repeating() -> None:
    """After the head of the journal was dropped, the snapshot defines what is missing and nothing twice."""
    snapshot = Snapshot(0, {"lr": 0.1}, {"a": None}, (TABLE,))
    items, _ = translate(snapshot, vector(1, [1.0] * 4), Params(0, {"lr": 0.1}), snapshot)
    assert sum(isinstance(item, ParamsItem) for item in items) == 1
    assert sum(isinstance(item, TagsItem) for item in items) == 1
    assert points(items)["gradients/head.weight"] == [(1, 1.0)]


def test_vector_without_its_table_is_counted() -> None:
    """Values that nobody can name are counted, not guessed."""
    items, translator = translate(vector(0, [1.0] * 4))
    assert items == []
    assert translator.dropped == {"unknown_series_table": 4}


def test_state_survives_a_restart() -> None:
    """A courier that goes on after a crash knows tables, params and last steps, and drops nothing twice."""
    can = Capabilities(steps="increasing")
    _, before = translate(TABLE, vector(1, [1.0] * 4), Metrics(0, 5, {"a": 1.0}), can=can)
    definitions = msgspec.msgpack.decode(msgspec.msgpack.encode(before.definitions), type=type(before.definitions))
    progress = msgspec.msgpack.decode(msgspec.msgpack.encode(before.progress), type=type(before.progress))
    after = Translator(can, Route(), Path("/nowhere"), definitions, progress)
    items = [*after(3, vector(2, [2.0] * 4)), *after(4, Metrics(0, 5, {"a": 9.0}))]
    assert points(items)["gradients/head.weight"] == [(2, 2.0)]
    assert after.dropped == {"step_not_increasing": 1}


def test_many_different_sets_of_names_do_not_grow_memory() -> None:
    """A script that invents names at every call must not fill the delivery process."""
    translator = Translator(Capabilities(), Route(), Path("/nowhere"))
    for number in range(5000):
        list(translator(number, Metrics(0, 0, {f"x{number % 3}": 1.0, f"y{number}": 1.0})))
    assert len(translator._columns) <= 4096


def test_partial_tables_make_no_totals_and_scopes_keep_theirs_apart() -> None:
    """A rotating measurement holds a part of the layers: its sum is no total. Two optimizers have two totals."""
    partial = msgspec.structs.replace(TABLE, partial=True)
    items, _ = translate(partial, vector(0, [3.0, 4.0, 0.0, 0.0], [True, True, False, False]), group_by="block")
    assert sorted(points(items)) == [
        "gradients/layer.0.bias",
        "gradients/layer.0.weight",
        "gradients/non_finite_layers",
        "gradients/skipped",
    ]
    scoped = msgspec.structs.replace(TABLE, scope="generator")
    items, _ = translate(scoped, vector(0, [3.0, 4.0, 0.0, 0.0]), group_by="total")
    assert points(items)["gradients/generator/total_norm"] == [(0, 5.0)]


def test_grouping_is_the_routes_else_the_scripts_else_the_configured_one() -> None:
    """A backend's route wins over what `watch` said, which wins over the configuration."""
    scripted = msgspec.structs.replace(TABLE, group_by="total")
    record = vector(0, [3.0, 4.0, 1.0, 2.0])
    assert "gradients/head" in points(translate(scripted, record, group_by="block")[0])
    assert "gradients/layer.0" not in points(translate(scripted, record, default_group_by="block")[0])
    assert "gradients/head" in points(translate(TABLE, record, default_group_by="block")[0])
