"""tracker_bridge inside training frameworks: `transformers`, `lightning` and `accelerate`, each imported on its own.

    from tracker_bridge.integrations.transformers import TrackerBridgeCallback
    from tracker_bridge.integrations.lightning import TrackerBridgeLogger, GradientNorms
    from tracker_bridge.integrations.accelerate import TrackerBridgeTracker

Importing this package imports no framework; importing one of its modules imports that one framework. A framework's own
run, checkpoint and numbering of steps lead; faults of ours never reach the training.
"""

from __future__ import annotations

__all__ = ["accelerate", "lightning", "transformers"]
