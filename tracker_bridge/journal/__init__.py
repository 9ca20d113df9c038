"""The queue on disk: one process appends records, any number of readers follow at their own pace.

This package knows files and records, no tracker and no torch.
"""

from tracker_bridge.journal._definitions import Definitions
from tracker_bridge.journal._entries import Entry, Gap, GapReason, Item
from tracker_bridge.journal._errors import JournalError, WriterBusyError
from tracker_bridge.journal._position import Position
from tracker_bridge.journal._reader import JournalReader, scan
from tracker_bridge.journal._store import WhenFull
from tracker_bridge.journal._writer import JournalWriter

__all__ = [
    "Definitions",
    "Entry",
    "Gap",
    "GapReason",
    "Item",
    "JournalError",
    "JournalReader",
    "JournalWriter",
    "Position",
    "WhenFull",
    "WriterBusyError",
    "scan",
]
