"""`torch.utils.tensorboard.summary`: functions that make event protos, which have no meaning without TensorBoard."""

from __future__ import annotations

from typing import Any

from tracker_bridge.compat._core import missing

_RAISING = ("custom_scalars", "histogram", "hparams", "image", "make_histogram", "pr_curve", "scalar", "text", "video")


def __getattr__(name: str) -> Any:
    return missing(__name__, "tensorboard.summary", name, _RAISING)
