"""The record types. Fields are only ever appended, with a default, so that old journals stay readable.

Every time is nanoseconds since the Unix epoch, taken when the value was logged (never when it was sent).
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

RECORD_FORMAT = 1
"""Version of this module's record layout, stored in every segment header."""

Step = Union[int, float]
"""An int64, or a float where the script counts in fractions (Neptune accepts those)."""


class Record(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Base of everything the journal holds. `time_ns` is when the value was logged."""

    time_ns: int


class RunStarted(Record, frozen=True, array_like=True, tag=1):
    """A process began to write to this run. A resumed run has one for each attempt (1, 2, ...)."""

    run_id: str
    attempt: int
    pid: int
    host: str
    provenance: dict[str, Any] = {}


class Params(Record, frozen=True, array_like=True, tag=2):
    """Hyper-parameters, nested as they were logged, with plain values only (see `run._params.plain`)."""

    params: dict[str, Any]


class Tags(Record, frozen=True, array_like=True, tag=3):
    """Tags added and removed. A plain tag has the value None; a key/value tag has a string."""

    add: dict[str, Union[str, None]] = {}
    remove: tuple[str, ...] = ()


class Metrics(Record, frozen=True, array_like=True, tag=4):
    """Scalars of one logging call: float64 values by series name, one step."""

    step: Step
    values: dict[str, float]


class SeriesTable(Record, frozen=True, array_like=True, tag=5):
    """Names the slots of the `NormVector`s that refer to `table`. Written once, before the first of them.

    `kind` is what is measured (`gradients`, `activations`, `parameters`, ...) and the first part of each series
    name. `names` and `numel` have one entry per slot, in forward (registration) order; `numel` is the number of
    elements of the whole, unsharded tensor. `groups` holds groupings that only the training process can compute
    (a callable `group_by`): grouping name -> the group of each slot.
    """

    table: int
    kind: str
    names: tuple[str, ...]
    numel: tuple[int, ...]
    norm_type: float = 2.0
    groups: dict[str, tuple[str, ...]] = {}
    block_prefixes: tuple[str, ...] = ()
    """Clean module paths of repeated layers (items of a ModuleList or Sequential), e.g. `bert.encoder.layer.3`."""
    scope: str = ""
    """What these slots have in common where a run measures several sets apart (one per optimizer): the summary series
    are then `<kind>/<scope>/total_norm` and so on. Empty: the whole model."""
    partial: bool = False
    """Each record holds only some of the slots, in turn: no total and no group norm can be computed from one record."""
    group_by: str = ""
    """How the script wants these grouped (`block`, or `custom` for a callable); empty: as configured."""


class NormVector(Record, frozen=True, array_like=True, tag=6):
    """All norms of one step. `values` is little-endian float64 [L]; see `pack_values`/`unpack_values`.

    `present` is a little-endian bit mask of L bits (None: all present); an absent slot's value is meaningless and
    is not zero. `total` is the norm over everything that was measured together (the clip's total if the script
    clips), None: to be computed from `values`. `clip_coefficient` is what the gradients were multiplied by
    (1.0 = not clipped, None = unknown or no clipping). `post_clip`: the values were measured after the script
    clipped and the coefficient is not known.
    """

    step: Step
    table: int
    values: bytes
    present: Union[bytes, None] = None
    total: Union[float, None] = None
    skipped: bool = False
    clip_coefficient: Union[float, None] = None
    post_clip: bool = False
    max_norm: Union[float, None] = None


class Text(Record, frozen=True, array_like=True, tag=7):
    """A text under a name, with a step if it belongs to one."""

    name: str
    text: str
    step: Union[int, float, None] = None


class Artifact(Record, frozen=True, array_like=True, tag=8):
    """A file under a name. `path` is absolute, or relative to the run directory if the bridge holds its own copy."""

    name: str
    path: str
    step: Union[int, float, None] = None
    media_type: str = "application/octet-stream"


class Histogram(Record, frozen=True, array_like=True, tag=9):
    """`edges` is little-endian float64 [B + 1], `counts` little-endian float64 [B]."""

    name: str
    step: Step
    edges: bytes
    counts: bytes


class Alert(Record, frozen=True, array_like=True, tag=10):
    """Something a health rule found."""

    rule: str
    step: Step
    severity: str
    title: str
    text: str
    layers: tuple[str, ...] = ()
    evidence: dict[str, Any] = {}
    cause: int = -1
    """The journal's sequence of the record that caused it, where that is known."""


class RunFinished(Record, frozen=True, array_like=True, tag=11):
    """The writing process ended this attempt on purpose. `status`: finished, failed, killed or crashed."""

    status: str
    message: str = ""


class Snapshot(Record, frozen=True, array_like=True, tag=12):
    """State restated at the head of a segment because `max_disk` removed the segments that held it."""

    params: dict[str, Any]
    tags: dict[str, Union[str, None]]
    tables: tuple[SeriesTable, ...]


class Dropped(Record, frozen=True, array_like=True, tag=13):
    """Records that never reached the journal, by reason, since the previous such record."""

    reasons: dict[str, int]


AnyRecord = Union[
    RunStarted,
    Params,
    Tags,
    Metrics,
    SeriesTable,
    NormVector,
    Text,
    Artifact,
    Histogram,
    Alert,
    RunFinished,
    Snapshot,
    Dropped,
]
