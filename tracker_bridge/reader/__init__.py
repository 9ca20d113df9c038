"""A finished or living run read back from its directory, without its trackers.

This package reads only. It knows the run directory, the journal and the records; no tracker and no torch.
"""

from tracker_bridge.reader._gaps import gap_text
from tracker_bridge.reader._norms import GradientNormTable
from tracker_bridge.reader._run import Attempt, RunReader, read

__all__ = ["Attempt", "GradientNormTable", "RunReader", "gap_text", "read"]
