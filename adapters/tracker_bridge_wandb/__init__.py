"""Adapter for Weights & Biases: offline logs and the online service, with its own step axis and no dropped steps."""

from tracker_bridge_wandb._adapter import WandbAdapter
from tracker_bridge_wandb._options import WandbOptions

__all__ = ["WandbAdapter", "WandbOptions"]
