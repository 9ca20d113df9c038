"""`torch.utils.tensorboard.summary`: what frameworks take from it. Other functions make protos, and raise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracker_bridge.compat._core import missing
from tracker_bridge.compat.tensorboard.writer import MadeSummary

__all__ = ["hparams", "scalar"]

_RAISING = ("custom_scalars", "histogram", "image", "make_histogram", "pr_curve", "text", "video")


def hparams(
    hparam_dict: Mapping[str, Any] | None = None,
    metric_dict: Mapping[str, Any] | None = None,
    hparam_domain_discrete: Any = None,
) -> tuple[MadeSummary, MadeSummary, MadeSummary]:
    """Three summaries, to be added to a file writer; the params are in the first."""
    del metric_dict, hparam_domain_discrete
    return MadeSummary(params=dict(hparam_dict or {})), MadeSummary(), MadeSummary()


def scalar(name: str, tensor: Any, *_args: Any, **_kwargs: Any) -> MadeSummary:
    """A number, to be added to a file writer."""
    return MadeSummary(scalars={name: tensor})


def __getattr__(name: str) -> Any:
    return missing(__name__, "tensorboard.summary", name, _RAISING)
