"""What a tracker can hold, as data. The courier translates by it, the README's table and `backends --json` print it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CONTRACT_VERSION = 1
"""Raised when an adapter written for the old contract would no longer work."""


@dataclass(frozen=True, slots=True)
class NameRule:
    """Which series names the tracker stores.

    `allowed` is a regular-expression character class for the characters kept (the default keeps everything that is
    not a control character or a lone surrogate); every other character becomes an underscore. `path` says that the
    name must be a clean relative path (no leading, trailing or doubled slash, no `.` or `..` part). `max_length` is
    counted in `unit`. `reserved` lists regular expressions of names that the tracker uses itself.
    """

    allowed: str = r"[^\x00-\x1f\x7f\ud800-\udfff]"
    max_length: int | None = None
    unit: Literal["characters", "bytes"] = "characters"
    path: bool = False
    reserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParamRule:
    """How params are stored. `separator` joins nested keys (None: the tracker nests by itself).

    `typed`: numbers and booleans stay what they are (else text). `mutable`: a value may change later. Lengths are in
    characters; a longer value is cut visibly and the whole is kept in the params artifact.
    """

    separator: str | None = "/"
    typed: bool = False
    mutable: bool = True
    max_key_length: int | None = None
    max_value_length: int | None = None
    max_per_request: int | None = None


@dataclass(frozen=True, slots=True)
class TagRule:
    """`form`: `list` (strings), `mapping` (key -> value), `text` (written as text), `none`."""

    form: Literal["list", "mapping", "text", "none"] = "list"
    max_length: int | None = None
    removable: bool = True


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the tracker can hold.

    `max_points`/`max_items`: at most that many scalar points (items) in one `write`. `max_row`: at most that many
    points in one row (None: any). `steps`: `any` (late and repeated steps are kept), `increasing` (per series, others
    are dropped with a counted reason), `late_run` (late rows are sent with `Row.late` set and stored apart).
    `step_type`: `int` or `float` (fractions are kept). `non_finite`: `native` (NaN and both infinities are kept
    apart), `nan` (NaN only), `none`; what is not native goes to the companion series `<name>/non_finite`
    (1 = NaN, 2 = +inf, 3 = -inf). `value_type`: what a scalar becomes. `duplicates`: after a crash a re-sent item is
    `ignored` by the tracker (or the adapter), or stays `visible`. `media`: which of text, histogram, artifact, image
    are native; the rest is degraded as the adapter documents.
    """

    max_points: int = 100_000
    max_items: int = 10_000
    max_row: int | None = None
    steps: Literal["any", "increasing", "late_run"] = "any"
    step_type: Literal["int", "float"] = "int"
    non_finite: Literal["native", "nan", "none"] = "native"
    value_type: Literal["float64", "float32"] = "float64"
    duplicates: Literal["ignored", "visible"] = "visible"
    names: NameRule = NameRule()
    params: ParamRule = ParamRule()
    tags: TagRule = TagRule()
    media: frozenset[Literal["text", "histogram", "artifact", "image"]] = frozenset()
    resumable: bool = True
