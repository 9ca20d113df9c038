"""A place in the journal."""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True, order=True):
    """The place before the record numbered `sequence` (from 0, counted over the whole journal).

    `segment` and `offset` say where a reader finds it at once; (0, 0) means: look from the oldest segment on.
    """

    sequence: int = 0
    segment: int = 0
    offset: int = 0
