"""`neptune_scale.logging.logging_handler`: where the handler is imported from as well."""

from __future__ import annotations

from tracker_bridge.compat.neptune_scale._handler import NeptuneLoggingHandler

__all__ = ["NeptuneLoggingHandler"]
