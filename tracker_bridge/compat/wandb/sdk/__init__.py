"""`wandb.sdk`: only the place of `wandb.sdk.wandb_run`, which type annotations name."""

from __future__ import annotations

from tracker_bridge.compat.wandb.sdk import wandb_run

__all__ = ["wandb_run"]
