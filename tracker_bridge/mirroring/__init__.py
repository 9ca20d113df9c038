"""`mirror`: a tracker's SDK goes on working, and what a script logs with it is copied into a bridge run as well.

Explicit and reversible: nothing is wrapped before `mirror`, and after `unmirror` the SDK has its very own functions
again. The SDK's own call comes first, with its own result and exceptions; faults of the copying stay here.
"""

from __future__ import annotations

from tracker_bridge.mirroring._mirror import Mirror, mirror, unmirror

__all__ = ["Mirror", "mirror", "unmirror"]
