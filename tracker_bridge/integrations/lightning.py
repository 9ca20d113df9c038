"""A Lightning `Logger`, and a `Callback` that records the gradient norm of every layer, for each optimizer.

    trainer = Trainer(logger=TrackerBridgeLogger("tracker.yaml"), callbacks=[GradientNorms(every_n_steps=10)])

Lightning calls `on_before_optimizer_step` before it clips; there the norms are measured. The gradients of a fused
optimizer are still scaled then, and what they are multiplied by is divided out. Recorded under the step that Lightning
gives to the metrics of the same batch. `pytorch_lightning` is used instead of `lightning` where it was imported before.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracker_bridge.run import Run, current, init

_HOME = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"

try:
    _callbacks: Any = import_module(f"{_HOME}.callbacks")
    _loggers: Any = import_module(f"{_HOME}.loggers")
    _rank_zero: Any = import_module(f"{_HOME}.utilities.rank_zero")
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError("lightning is not installed: pip install 'tracker-bridge[lightning]'") from error

if TYPE_CHECKING:
    import torch

    from tracker_bridge.collector import Attachment, GradientNormCollector

__all__ = ["GradientNorms", "TrackerBridgeLogger"]

rank_zero_only = _rank_zero.rank_zero_only

_STATUS = {"success": "finished", "failed": "failed", "interrupted": "killed"}


class TrackerBridgeLogger(_loggers.Logger):  # type: ignore[misc]
    """Logs to one run, which begins when it is first needed. Pickled before, it begins in the process that trains.

    Args:
        config: As in `tracker_bridge.init`.
        run: A run that the script began and will close.
        init_options: More for `tracker_bridge.init` (project, name, `run_id`, tags, ...).
    """

    def __init__(self, config: Any = None, *, run: Run | None = None, **init_options: Any) -> None:
        super().__init__()
        self._config, self._given, self._options = config, run, init_options
        self._own: Run | None = None

    @property
    def experiment(self) -> Run:
        """The run, on every process; only the first process' writes."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = init(self._config, **self._options)
        return self._own

    @property
    def name(self) -> str:
        """The project's name; Lightning puts checkpoints into a directory called so."""
        return str(self._options.get("project") or "tracker_bridge")

    @property
    def version(self) -> str:
        """The run's id."""
        return self.experiment.id

    @property
    def save_dir(self) -> str | None:
        """None: checkpoints are Lightning's business and lie where it puts them by default."""
        return None

    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *_args: Any, **_kwargs: Any) -> None:
        """Log hyper-parameters."""
        self.experiment.log_params(params)

    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers."""
        self.experiment.log_metrics(metrics, step)

    @rank_zero_only  # type: ignore[untyped-decorator]
    def finalize(self, status: str) -> None:
        """Lightning is done for now; the run stays open for a later `test`. A failure ends it."""
        if self._own is not None and status != "success":
            self._own.close(_STATUS.get(status, "failed"))

    def close(self, status: str = "finished") -> None:
        """End the run if the logger began it. The end of the process does so, too."""
        if self._own is not None:
            self._own.close(status)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None, "_given": None}


class GradientNorms(_callbacks.Callback):  # type: ignore[misc]
    """Watches the LightningModule that is fitted, at the steps of each of its optimizers.

    Args:
        run: Where the norms go. Without one: the run of the trainer's `TrackerBridgeLogger`, or else the current run.
        watch_options: Options of `Run.watch` (`every_n_steps`, `include`, ...).

    With several optimizers each is recorded apart and counts its own steps. In manual optimization the norms are those
    at `optimizer.step()`: what the module has clipped before that call is measured after it, and marked so.
    """

    def __init__(self, *, run: Run | None = None, **watch_options: Any) -> None:
        super().__init__()
        self._given, self._options = run, watch_options
        self._collector: GradientNormCollector | None = None
        self._attachments: list[Attachment] = []
        self._coming: list[int] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Watch each optimizer. Raises `RuntimeError` if there is no run to record into."""
        run = self._run(trainer)
        self._collector = collector = run.watch(pl_module, **self._options)
        optimizers = list(trainer.optimizers)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        for number, optimizer in enumerate(optimizers):
            name = f"optimizer_{number}" if len(optimizers) > 1 else None
            self._attachments.append(collector.attach(optimizer, scaler, name=name))
        collector.step = first = _batches_that_stepped(trainer)
        self._coming = [first] * len(optimizers)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        """The gradients are complete and not clipped yet: measure them for the step that follows."""
        from torch.optim import LBFGS

        collector = self._collector
        if collector is None:
            return
        for number, attachment in enumerate(self._attachments):
            if any(optimizer is own for own in attachment.optimizers) and not isinstance(optimizer, LBFGS):
                # Counted here, since without a scaler this is called from inside a step that is counted already.
                # L-BFGS comes here many times in one step; it is left to the collector.
                step = collector.due(self._coming[number])
                self._coming[number] += 1
                if step is not None:
                    attachment.held = self._measured(collector, attachment, step, (trainer, pl_module, optimizer))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching."""
        del trainer, pl_module
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching."""
        del trainer, pl_module, exception
        self._detach()

    def _measured(self, collector: Any, attachment: Attachment, step: Any, clipping: tuple[Any, Any, Any]) -> Any:
        held = collector.held_for(attachment, step, attachment.scale())
        if held is not None and held.measurement is not None:
            try:
                held.measurement = held.measurement.but(clip=_clipped_by(*clipping))
            except Exception as error:
                collector.fault(error)
        return held

    def _detach(self) -> None:
        if self._collector is not None:
            self._collector.detach()
        self._collector, self._attachments, self._coming = None, [], []

    def _run(self, trainer: Any) -> Run:
        if self._given is not None:
            return self._given
        for logger in trainer.loggers:
            if isinstance(logger, TrackerBridgeLogger):
                return logger.experiment
        run = current()
        if run is None:
            raise RuntimeError(
                "GradientNorms has no run: pass run=, add a TrackerBridgeLogger to the Trainer, or call "
                "tracker_bridge.init first"
            )
        return run


def _batches_that_stepped(trainer: Any) -> int:
    """The step that Lightning gives to metrics; `global_step` counts the steps of all optimizers."""
    loop = getattr(trainer.fit_loop, "epoch_loop", None)
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def _clipped_by(trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> Any:
    """What Lightning is about to clip these gradients by, None if it is not or if the module clips in its own way."""
    import torch

    from tracker_bridge.collector import copy_to_host
    from tracker_bridge.collector._norms import Clip

    value = trainer.gradient_clip_val
    algorithm = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm) or "norm")
    own = type(pl_module).configure_gradient_clipping is not _base_of(pl_module).configure_gradient_clipping
    if not value or algorithm != "norm" or own or not pl_module.automatic_optimization:
        return None
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not gradients or any(hasattr(gradient, "device_mesh") for gradient in gradients):
        return None
    with torch.no_grad():
        return Clip(copy_to_host([torch.nn.utils.get_total_norm(gradients)], None), float(value), undo=False)


def _base_of(pl_module: Any) -> Any:
    return next(kind for kind in type(pl_module).__mro__ if kind.__name__ == "LightningModule")
