"""`torch.utils.tensorboard` and `tensorboardX` without TensorBoard: `SummaryWriter`, leading to any backends.

Each writer is a run of its own, named after its directory. Carried: scalars, scalar dicts (`main/name`), texts,
histograms, hparams. In another form: images, figures, audio (files). Graphs, embeddings, meshes, videos,
precision-recall curves and custom layouts are reported and left out; event files are for the TensorBoard backend.
"""

from __future__ import annotations

from typing import Any

from tracker_bridge.compat._core import missing
from tracker_bridge.compat.tensorboard.writer import FileWriter, GlobalSummaryWriter, SummaryWriter

__all__ = ["FileWriter", "GlobalSummaryWriter", "SummaryWriter"]
__version__ = "2.6"


def __getattr__(name: str) -> Any:
    return missing(__name__, "tensorboard", name, ("RecordWriter", "TorchVis"))
