"""Grouping: the norm of a group is the norm of the concatenation of its members."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_bridge.delivery._group import group_norms, group_slots, total_norm
from tracker_bridge.records import SeriesTable

NAMES = (
    "bert.embeddings.word_embeddings.weight",
    "bert.encoder.layer.0.attention.self.query.weight",
    "bert.encoder.layer.0.attention.self.query.bias",
    "bert.encoder.layer.0.output.dense.weight",
    "bert.encoder.layer.11.output.dense.weight",
    "classifier.weight",
)


def table(names: tuple[str, ...] = NAMES, **more: object) -> SeriesTable:
    return SeriesTable(0, 0, "gradients", names, (1,) * len(names), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefixes", [(), ("bert.encoder.layer.0", "bert.encoder.layer.11")])
def test_block_is_the_repeated_layer(prefixes: tuple[str, ...]) -> None:
    """Repeated layers are blocks, with and without the script's own list; the rest is grouped by module."""
    grouping = group_slots(table(block_prefixes=prefixes), "block")
    assert grouping.names == (
        "bert.embeddings.word_embeddings",
        "bert.encoder.layer.0",
        "bert.encoder.layer.11",
        "classifier",
    )


def test_block_in_a_mixture_of_experts_is_the_layer_not_the_expert() -> None:
    """The outermost repeated layer counts."""
    names = ("layers.3.mlp.experts.5.w1", "layers.3.mlp.experts.6.w1")
    prefixes = ("layers.3", "layers.3.mlp.experts.5", "layers.3.mlp.experts.6")
    assert group_slots(table(names, block_prefixes=prefixes), "block").names == ("layers.3",)


def test_module_and_custom_groups() -> None:
    """A module is the path without the parameter; a callable's groups come from the table."""
    assert "bert.encoder.layer.0.attention.self.query" in group_slots(table(), "module").names
    custom = group_slots(table(groups={"custom": ("a", "b", "a", "b", "a", "b")}), "custom")
    assert custom.names == ("a", "b")


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5), min_size=1, max_size=8),
    st.sampled_from([1.0, 2.0, 3.0, np.inf]),
)
def test_group_norm_equals_norm_of_concatenation(members: list[list[float]], p: float) -> None:
    """Norms of members combine to the norm over all their elements, for each norm type."""
    norms = np.array([np.linalg.norm(member, p) for member in members])
    names = tuple(f"block.{index % 2}.p{index}" for index in range(len(members)))
    grouping = group_slots(table(names), "block")
    got, some = group_norms(norms, np.ones(len(norms), dtype=bool), grouping, p)
    assert some.all()
    for name, value in zip(grouping.names, got, strict=True):
        whole = np.concatenate([m for n, m in zip(names, members, strict=True) if n.startswith(name)])
        assert value == pytest.approx(np.linalg.norm(whole, p), rel=1e-9, abs=1e-12)


def test_group_norm_survives_squares_outside_float64() -> None:
    """1e200 squared is inf and 1e-200 squared is 0 in float64; the group's norm is neither."""
    grouping = group_slots(table(("a.0.x", "a.0.y", "a.1.x", "a.1.y")), "block")
    values = np.array([3e200, 4e200, 3e-200, 4e-200])
    got, _ = group_norms(values, np.ones(4, dtype=bool), grouping, 2.0)
    assert got == pytest.approx([5e200, 5e-200])
    assert total_norm(values[:2], np.ones(2, dtype=bool), 2.0) == pytest.approx(5e200)


def test_absent_members_are_left_out_and_nan_is_kept() -> None:
    """An absent layer is not a zero, and a NaN makes its own group NaN and no other."""
    grouping = group_slots(table(("a.0.x", "a.0.y", "a.1.x", "a.1.y", "a.2.x", "a.2.y")), "block")
    values = np.array([3.0, np.nan, np.nan, 1.0, 2.0, np.inf])
    present = np.array([True, False, True, True, False, False])
    got, some = group_norms(values, present, grouping, 2.0)
    assert got[0] == 3.0
    assert np.isnan(got[1])
    assert some.tolist() == [True, True, False]
    assert np.isnan(total_norm(values, present, 2.0))
