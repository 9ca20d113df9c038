"""A tracker for Accelerate's `log_with`, with the gradient norm of every layer from before clipping.

tracker = TrackerBridgeTracker("tracker.yaml")
accelerator = Accelerator(log_with=tracker)
accelerator.init_trackers("nlp/bert", config={"learning_rate": 1e-4})
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
tracker.watch(model, optimizer)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError("accelerate is not installed: pip install 'tracker-bridge[accelerate]'") from error

from tracker_bridge.integrations._clipping import watch_clipping
from tracker_bridge.run import Run, init

if TYPE_CHECKING:
    import torch

    from tracker_bridge.collector import GradientNormCollector

__all__ = ["TrackerBridgeTracker"]


class TrackerBridgeTracker(GeneralTracker):  # type: ignore[misc]
    """One run; begun by `Accelerator.init_trackers`, closed by `Accelerator.end_training`.

    Args:
        config: As in `tracker_bridge.init`.
        init_options: More for `tracker_bridge.init`; `project` is what the project's name in `init_trackers` would be,
            which Accelerate does not tell to a tracker that was made before.
    """

    name = "tracker_bridge"
    requires_logging_directory = False
    # Every process needs a run, for collectors of sharded models measure together; only the first one's writes.
    main_process_only = False

    def __init__(self, config: Any = None, **init_options: Any) -> None:
        super().__init__()
        self._config, self._options = config, init_options
        self._run: Run | None = None
        self._stop: list[Callable[[], None]] = []

    @property
    def tracker(self) -> Run:
        """The run. Raises `RuntimeError` before `Accelerator.init_trackers`."""
        if self._run is None:
            raise RuntimeError("the run begins with accelerator.init_trackers(project_name)")
        return self._run

    def start(self) -> None:
        """Begin the run."""
        if self._run is None:
            self._run = init(self._config, **self._options)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Log hyper-parameters."""
        self.tracker.log_params(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_kwargs: Any) -> None:
        """Log numbers; texts under their names, and a mapping as `name/inner`."""
        numbers: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for name, value in values.items():
            if isinstance(value, str):
                texts[name] = value
            elif isinstance(value, Mapping):
                numbers.update({f"{name}/{inner}": number for inner, number in value.items()})
            else:
                numbers[name] = value
        if numbers:
            self.tracker.log_metrics(numbers, step)
        for name, text in texts.items():
            self.tracker.log_text(name, text, step)

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> GradientNormCollector:
        """Collect the gradient norms of a prepared model at the steps of its prepared optimizer.

        `options` are those of `Run.watch`. They are measured where the script calls `accelerator.clip_grad_norm_`, or
        at the step if it does not; a step that the scaler skips is recorded as skipped.
        """
        scaler = options.pop("scaler", getattr(optimizer, "scaler", None))
        collector = self.tracker.watch(model, optimizer, scaler=scaler, **options)
        self._stop += [watch_clipping(model, collector), collector.detach]
        return collector

    def finish(self) -> None:
        """End the run."""
        while self._stop:
            with contextlib.suppress(Exception):
                self._stop.pop(0)()
        if self._run is not None:
            self._run.close()
