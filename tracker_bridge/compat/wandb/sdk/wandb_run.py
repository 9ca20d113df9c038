"""`wandb.sdk.wandb_run`: where `Run` is imported from as well."""

from __future__ import annotations

from tracker_bridge.compat.wandb._run import Run

__all__ = ["Run"]
