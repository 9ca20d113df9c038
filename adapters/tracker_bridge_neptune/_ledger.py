"""What the adapter remembers beside Neptune's databases. Pure.

A database numbers its operations itself and never reuses a number, so after a crash its counter tells how far the last
commit got.
"""

from __future__ import annotations

from typing import Union

import msgspec

from tracker_bridge.adapter import Ledger


class OperationLedger(Ledger):
    """Counts the operations of `database`, the one that is written now."""

    database: str = ""
    unsent: list[str] = msgspec.field(default_factory=list)
    """Databases of earlier openings that may hold operations no server has."""
    last_steps: dict[str, float] = msgspec.field(default_factory=dict)
    """Last step of each series that is not a metric (texts, histograms, files)."""
    kinds: dict[str, str] = msgspec.field(default_factory=dict)
    """What each attribute is that is not a metric series: Neptune never lets an attribute change its type."""
    tags: list[str] = msgspec.field(default_factory=list)
    clock_ns: int = 0
    sync_process: Union[tuple[int, float], None] = None
    """Pid and creation time of the SDK's upload process."""
