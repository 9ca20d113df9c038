"""`neptune_scale.api.run`: where `Run` and `SourceTrackingConfig` are imported from as well."""

from __future__ import annotations

from tracker_bridge.compat.neptune_scale._run import Run, SourceTrackingConfig

__all__ = ["Run", "SourceTrackingConfig"]
