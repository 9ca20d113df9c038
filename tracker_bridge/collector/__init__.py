"""Per-layer gradient norms, before clipping, without waiting for the device: `GradientNormCollector`.

The only part of tracker_bridge that imports torch. It knows `tracker_bridge.records` and no tracker, file or process.
"""

from tracker_bridge.collector._collector import GradientNormCollector
from tracker_bridge.collector._device import HostCopy, copy_to_host
from tracker_bridge.collector._explain import Explanation
from tracker_bridge.collector._histograms import GradientHistogram
from tracker_bridge.collector._hooks import Attachment
from tracker_bridge.collector._norms import GradientNorms
from tracker_bridge.collector._parts import PARTS

__all__ = [
    "PARTS",
    "Attachment",
    "Explanation",
    "GradientHistogram",
    "GradientNormCollector",
    "GradientNorms",
    "HostCopy",
    "copy_to_host",
]
