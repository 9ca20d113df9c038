"""What a script uses: `init` and `Run`. Knows configuration, records, journal and run directory; imports no torch.

Everything here runs in the training process; what it does on the training thread is bounded by microseconds.
"""

from tracker_bridge.run._exit import current
from tracker_bridge.run._init import init
from tracker_bridge.run._result import BackendDelivery, Delivery
from tracker_bridge.run._run import Run

__all__ = ["BackendDelivery", "Delivery", "Run", "current", "init"]
