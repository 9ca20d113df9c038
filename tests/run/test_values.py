"""Steps, scalars, times, params and tags of every shape that scripts hand over."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import enum
import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tracker_bridge.run._plain import plain_params, plain_tags
from tracker_bridge.run._values import OnDevice, as_scalar, as_step, as_time_ns


@pytest.mark.parametrize(
    "value",
    [2, 2.0, True + 1, np.float32(2), np.int64(2), np.array(2.0), np.array([2.0]), torch.tensor(2.0), "2",
     torch.tensor([2]), torch.tensor(2.0, requires_grad=True), torch.tensor(2.0, dtype=torch.bfloat16)],
)  # fmt: skip
def test_whatever_float_takes_is_a_scalar(value: Any) -> None:
    """Numbers, numpy and torch scalars of any dtype, one-element arrays."""
    assert as_scalar("loss", value) == 2.0


@pytest.mark.parametrize("value", [None, [1.0], {"a": 1}, 1j, "x", np.zeros(3), torch.zeros(2, 2), object()])
def test_what_is_no_scalar_raises_naming_the_key(value: Any) -> None:
    """Misuse is a TypeError that says which metric and what was found."""
    with pytest.raises(TypeError, match=r"metric 'val/loss'"):
        as_scalar("val/loss", value)


def test_a_number_too_large_for_a_float_raises_naming_the_key() -> None:
    """10**400 is no float64."""
    with pytest.raises(ValueError, match=r"metric 'n' is too large"):
        as_scalar("n", 10**400)


def test_a_tensor_elsewhere_is_not_read() -> None:
    """A tensor on an accelerator must not be synchronised here."""

    class Device:
        type = "cuda"

    class Elsewhere:
        device = Device()

        def __float__(self) -> float:
            raise AssertionError("read on the training thread")

    with pytest.raises(OnDevice):
        as_scalar("loss", Elsewhere())


@pytest.mark.parametrize(
    ("step", "expected"),
    [(3, 3), (np.int64(3), 3), (torch.tensor(3), 3), (3.0, 3), (np.float32(3), 3), (1.5, 1.5), (-1, -1),
     (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (np.uint8(7), 7)],
)  # fmt: skip
def test_steps_of_any_numeric_type(step: Any, expected: Any) -> None:
    """Whole numbers become ints, fractions stay floats."""
    got = as_step(step)
    assert (got, type(got)) == (expected, type(expected))


@pytest.mark.parametrize("step", [2**63, math.nan, math.inf])
def test_steps_outside_int64_raise(step: Any) -> None:
    """A step that no tracker can hold is misuse."""
    with pytest.raises(ValueError, match="step"):
        as_step(step)


@pytest.mark.parametrize("step", ["3", None, [1], object()])
def test_steps_of_other_types_raise(step: Any) -> None:
    """Text is no step."""
    with pytest.raises(TypeError, match="step must be a number"):
        as_step(step)


def test_timestamps() -> None:
    """A datetime or seconds since the epoch; a naive datetime is local time."""
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
    assert as_time_ns(moment) == as_time_ns(moment.timestamp()) == 1767323045 * 10**9
    assert as_time_ns(moment.astimezone().replace(tzinfo=None)) == 1767323045 * 10**9
    with pytest.raises(TypeError, match="timestamp"):
        as_time_ns("now")  # type: ignore[arg-type]


UTC = dt.timezone.utc


@pytest.mark.parametrize(
    "timestamp",
    [dt.datetime(9999, 1, 1, tzinfo=UTC), dt.datetime(2262, 4, 12, tzinfo=UTC), dt.datetime(1, 1, 1), 1e12, -1e12,
     10**400, 2**64 / 1e9, math.nan, math.inf, -math.inf],
)  # fmt: skip
def test_a_time_that_no_record_holds_raises_naming_the_argument(timestamp: Any) -> None:
    """Outside int64 nanoseconds (1677 to 2262), or no time at all (naive: every such record is lost, uncounted)."""
    with pytest.raises(ValueError, match=r"timestamp must lie between the years 1677 and 2262"):
        as_time_ns(timestamp)


def test_the_first_and_the_last_time_are_taken() -> None:
    """The range is int64's, to float64's precision."""
    assert as_time_ns(-9.2e9) == -9_200_000_000 * 10**9
    assert as_time_ns(9_223_372_036) == 9_223_372_036 * 10**9


class Colour(enum.Enum):
    RED = "red"
    WEIRD = object()


@dataclasses.dataclass
class Inner:
    rate: float = 0.1
    sizes: tuple[int, ...] = (1, 2)


def a_function() -> None: ...


def test_params_of_every_kind_become_plain_and_repeatable() -> None:
    """Nothing raises, nothing holds a memory address, and equal settings give equal params."""
    params = {
        "inner": Inner(),
        "namespace": argparse.Namespace(x=1, y=None),
        "enum": [Colour.RED, Colour.WEIRD],
        "path": Path("/data/x"),
        "when": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
        "numpy": [np.float32(0.5), np.int64(3), np.bool_(True), np.dtype("float32")],
        "torch": [torch.tensor(2.5), torch.float16, torch.device("cpu"), torch.zeros(1000)],
        "call": [a_function, functools.partial(a_function, 1, k=2), torch.nn.functional.relu, Inner],
        "set": {3, 1, 2},
        "bytes": b"ab",
        3: "int key",
        "huge": 2**70,
        "nan": math.nan,
        "none": None,
        "object": object(),
        "long": "x" * 9000,
        "surrogate": "a\ud800b",
    }
    plain = plain_params(params)
    assert plain["inner"] == {"rate": 0.1, "sizes": [1, 2]}
    assert plain["namespace"] == {"x": 1, "y": None}
    assert plain["enum"] == ["red", "WEIRD"]
    assert plain["path"] == "/data/x"
    assert plain["when"] == "2026-01-02T00:00:00+00:00"
    assert plain["numpy"] == [0.5, 3, True, "float32"]
    assert plain["torch"] == [2.5, "torch.float16", "cpu", "Tensor(shape=(1000,), dtype=torch.float32)"]
    assert plain["set"] == [1, 2, 3]
    assert plain["3"] == "int key"
    assert plain["huge"] == str(2**70)
    assert math.isnan(plain["nan"])
    assert plain["none"] is None
    assert len(plain["long"]) == 9000
    assert "0x" not in repr(plain)
    assert plain["call"][0].endswith("a_function")
    assert plain["call"][1].startswith("partial(")
    assert repr(plain_params(params)) == repr(plain)


class Raising:
    """Whatever is asked of it raises, as objects do whose own state is not there (a proxy, a lazy handle)."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self, *given: Any, **named: Any) -> None:
        raise RuntimeError("call")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class RaisingItems(dict[str, Any]):
    """A mapping that cannot be looked through."""

    def items(self) -> Any:
        raise RuntimeError("items")

    def __iter__(self) -> Any:
        raise RuntimeError("iter")


class Lazy(Mapping[str, Any]):
    """One of its values cannot be had."""

    def __getitem__(self, name: str) -> Any:
        if name == "broken":
            raise RuntimeError("not there")
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(("broken", "whole"))

    def __len__(self) -> int:
        return 2


class RaisingText(str):
    def __str__(self) -> str:
        raise RuntimeError("str")


class RaisingNumber(int):
    def __le__(self, other: object) -> bool:
        raise RuntimeError("le")

    __lt__ = __ge__ = __gt__ = __le__


class RaisingSequence(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("iter")


class Proxy:
    """What lazy objects do before there is anything behind them."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("unbound")


@dataclasses.dataclass
class Unset:
    """A field that nobody has set."""

    rate: float = 0.1
    later: int = dataclasses.field(init=False)


class Shaped:
    """It has a shape and a dtype, and neither is what an array has."""

    dtype = "f4"

    def __init__(self, shape: Any) -> None:
        self.shape = shape


def deep() -> Any:
    value = functools.partial(a_function)
    for _ in range(5000):
        value.kept = True  # type: ignore[attr-defined]  # or the next one would take its place
        value = functools.partial(value, 1)
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32, "numpy.float32"),
        (np.ndarray, "numpy.ndarray"),
        (torch.Tensor, "torch.Tensor"),
        (np, "numpy"),
        (torch, "torch"),
        (10**5000, hex(10**5000)),
        (-(10**5000), hex(-(10**5000))),
        (np.longdouble(1.5), "1.5"),
        (Raising(), None),
        (RaisingItems(a=1), "<RaisingItems, which raises RuntimeError>"),
        (RaisingText("x"), None),
        (RaisingNumber(3), None),
        (RaisingSequence([1]), None),
        ({1, 2, Raising()}, None),
        (Proxy(), None),
        (Shaped(None), None),
        (Shaped(("x",)), None),
        (Shaped((2, 3)), "Shaped(shape=(2, 3), dtype=f4)"),
        (deep(), None),
        (functools.partial(Raising(), Raising(), a=Proxy()), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_param_raises_whatever_it_is(value: Any, text: str | None) -> None:
    """Text in its place, without an address, and the params beside it are whole (naive: `init` raises TypeError)."""
    params = plain_params({"odd": value, "list": [value], "rate": 0.5})
    assert list(params) == ["odd", "list", "rate"]
    assert params["rate"] == 0.5
    assert params["list"] == [params["odd"]]
    assert "0x" not in repr(params) or text is not None
    msgspec.msgpack.encode(params)
    if text is not None:
        assert params["odd"] == text


def test_a_field_that_cannot_be_read_costs_no_other() -> None:
    """A lazy mapping's broken value is text; a field that nobody has set is left out."""
    assert plain_params(Lazy()) == {"broken": "<raises RuntimeError>", "whole": 1}
    assert plain_params(Unset()) == {"rate": 0.1}
    assert plain_params({"inner": Unset()}) == {"inner": {"rate": 0.1}}
    assert plain_params({Raising(): 1, 10**5000: 2}) == {
        "<Raising, whose repr raises RuntimeError>": 1,
        hex(10**5000): 2,
    }


def test_params_whose_fields_cannot_be_read_are_told() -> None:
    """Where not even the names can be had there is nothing to keep: the one error says why."""
    with pytest.raises(TypeError, match=r"params: the fields of RaisingItems cannot be read \(RuntimeError: iter\)"):
        plain_params(RaisingItems(a=1))


def test_an_interpolation_that_leads_nowhere_is_kept_as_it_stands() -> None:
    """OmegaConf raises when it resolves such a config; its own words are the param then."""
    from omegaconf import OmegaConf

    config = OmegaConf.create({"a": 1, "b": "${missing.key}", "c": "???"})
    assert plain_params(config) == {"a": 1, "b": "${missing.key}", "c": "???"}
    assert plain_params({"cfg": config})["cfg"]["a"] == 1


def test_omegaconf_dataclass_and_cycles() -> None:
    """A DictConfig is resolved; a structure that contains itself ends."""
    from omegaconf import OmegaConf

    config = OmegaConf.create({"a": 1, "b": "${a}", "c": {"d": [1, 2]}})
    assert plain_params(config) == {"a": 1, "b": 1, "c": {"d": [1, 2]}}
    assert plain_params({"cfg": config})["cfg"]["b"] == 1
    loop: dict[str, Any] = {"x": 1}
    loop["self"] = loop
    assert plain_params(loop) == {"x": 1, "self": "<dict that contains itself>"}
    with pytest.raises(TypeError, match="params must be a mapping"):
        plain_params([1, 2])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("single", {"single": None}),
        (["a", "b", "a"], {"a": None, "b": None}),
        ({"k": "v", "n": 3, "plain": None}, {"k": "v", "n": "3", "plain": None}),
        ([1, Colour.RED], {"1": None, "red": None}),
        (None, {}),
        ((tag for tag in ("x",)), {"x": None}),
        ({"n": 10**5000, "odd": Raising()}, {"n": hex(10**5000), "odd": "<Raising, whose repr raises RuntimeError>"}),
    ],
)
def test_tags_in_any_form(tags: Any, expected: dict[str, str | None]) -> None:
    """One text is one tag, never letters."""
    assert plain_tags(tags) == expected


@pytest.mark.parametrize("tags", [3, [None], [["a"]]])
def test_tags_that_are_none(tags: Any) -> None:
    """Misuse raises."""
    with pytest.raises(TypeError, match="tag"):
        plain_tags(tags)
