"""The public contract between the bridge and a tracker. Everything an adapter may import is here.

An adapter is a subclass of `Adapter` named in the entry-point group `tracker_bridge.adapters`. It is called from one
courier thread of the delivery process (or of the script in thread mode), never from two threads at once, and never
from the training thread. It receives items that were already routed, grouped, renamed to the tracker's name rule and
freed of values that the tracker cannot hold - all derived from its `capabilities` - so that what is left is speaking
to the tracker. This package imports msgspec and numpy, no torch and no tracker.
"""

from tracker_bridge.adapter._capabilities import CONTRACT_VERSION, Capabilities, NameRule, ParamRule, TagRule
from tracker_bridge.adapter._contract import Adapter, Opened, Options, Requirement, RunInfo
from tracker_bridge.adapter._errors import AdapterError, Rejected, RetryLater
from tracker_bridge.adapter._items import (
    AlertItem,
    ArtifactItem,
    Batch,
    HistogramItem,
    Item,
    ParamsItem,
    Row,
    TagsItem,
    TextItem,
)
from tracker_bridge.adapter._names import NameMap
from tracker_bridge.adapter._once import Ledger, LedgerFile, Mark, Marker
from tracker_bridge.adapter._params import flatten_params, param_text
from tracker_bridge.adapter._writer import WriterAdapter
from tracker_bridge.records import merge_params

__all__ = [
    "CONTRACT_VERSION",
    "Adapter",
    "AdapterError",
    "AlertItem",
    "ArtifactItem",
    "Batch",
    "Capabilities",
    "HistogramItem",
    "Item",
    "Ledger",
    "LedgerFile",
    "Mark",
    "Marker",
    "NameMap",
    "NameRule",
    "Opened",
    "Options",
    "ParamRule",
    "ParamsItem",
    "Rejected",
    "Requirement",
    "RetryLater",
    "Row",
    "RunInfo",
    "TagRule",
    "TagsItem",
    "TextItem",
    "WriterAdapter",
    "flatten_params",
    "merge_params",
    "param_text",
]
