"""Modules with the everyday API of other trackers, which need no SDK of them and lead to any configured backends.

    from tracker_bridge.compat import wandb            # instead of: import wandb

`neptune_scale`, `wandb`, `mlflow` and `tensorboard` translate into calls of `tracker_bridge.Run`; each is imported on
its own. What one does not carry it says once per kind on standard error and counts; what it cannot mean raises
`NotImplementedError`. Nothing here imports torch or an SDK, touches `random`, standard output or signal handlers.
"""

from __future__ import annotations

__all__ = ["mlflow", "neptune_scale", "tensorboard", "wandb"]
