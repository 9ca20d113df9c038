"""Adapter for Neptune 3 (`neptune-scale`): a local database, or a self-hosted server through the SDK's own process.

Neptune's hosted service closed on 2026-03-05. `mode: offline` needs no account and writes the SDK's own database, which
`tracker-bridge import`, `neptune sync` and anything that reads SQLite can take further.
"""

from tracker_bridge_neptune._adapter import NeptuneAdapter
from tracker_bridge_neptune._options import NeptuneOptions

__all__ = ["NeptuneAdapter", "NeptuneOptions"]
