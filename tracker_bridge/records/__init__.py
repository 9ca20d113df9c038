"""What travels in the journal: small frozen records and their binary form.

This package may import msgspec and numpy only. It knows no tracker, no file and no torch tensor.
"""

from tracker_bridge.records._codec import decode, encode, pack_mask, pack_values, unpack_mask, unpack_values
from tracker_bridge.records._merge import merge_params
from tracker_bridge.records._text import encodable
from tracker_bridge.records._types import (
    RECORD_FORMAT,
    Alert,
    AnyRecord,
    Artifact,
    Dropped,
    Histogram,
    Metrics,
    NormVector,
    Params,
    Record,
    RunFinished,
    RunStarted,
    SeriesTable,
    Snapshot,
    Step,
    Tags,
    Text,
)

__all__ = [
    "RECORD_FORMAT",
    "Alert",
    "AnyRecord",
    "Artifact",
    "Dropped",
    "Histogram",
    "Metrics",
    "NormVector",
    "Params",
    "Record",
    "RunFinished",
    "RunStarted",
    "SeriesTable",
    "Snapshot",
    "Step",
    "Tags",
    "Text",
    "decode",
    "encodable",
    "encode",
    "merge_params",
    "pack_mask",
    "pack_values",
    "unpack_mask",
    "unpack_values",
]
