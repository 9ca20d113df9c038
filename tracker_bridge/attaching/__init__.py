"""`attach`: a live run object or writer of the script becomes a backend of a bridge run.

The script's own rows, steps and tags stay as they are, and its object stays open: the bridge never ends what it did not
begin. Delivery runs on a thread of the script, since the object cannot leave the process.
"""

from __future__ import annotations

from tracker_bridge.attaching._attach import attach

__all__ = ["attach"]
