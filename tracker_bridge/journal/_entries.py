"""What a reader of the journal gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from tracker_bridge.records import AnyRecord

GapReason = Literal["max_disk", "corrupt", "unknown"]
"""`max_disk`: the segment was deleted to stay within the limit. `corrupt`: damaged on disk, or lost in a power cut.
`unknown`: written by a newer version, with a record type that this one does not know."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record and its number, counted from 0 over the whole journal."""

    sequence: int
    record: AnyRecord


@dataclass(frozen=True, slots=True)
class Gap:
    """`count` records from `sequence` on that cannot be read any more."""

    sequence: int
    count: int
    reason: GapReason


Item = Union[Entry, Gap]
