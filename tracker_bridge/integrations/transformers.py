"""A `transformers.TrainerCallback`: params, what the Trainer logs, and the gradient norm of every layer.

The Trainer calls `on_pre_optimizer_step` after it has clipped, so the norms are taken where it clips, not there. They
are recorded under the step that the Trainer gives to the `grad_norm` of the same update.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

try:
    from transformers import TrainerCallback
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError("transformers is not installed: pip install 'tracker-bridge[transformers]'") from error

from tracker_bridge.errors import UsageError
from tracker_bridge.integrations._clipping import watch_clipping
from tracker_bridge.run import Run, init

__all__ = ["TrackerBridgeCallback"]

_KEPT = "tracker_bridge"
"""The key of the trainer's state under which a checkpoint holds the run's id."""

_SPLITS = ("eval_", "test_")


class TrackerBridgeCallback(TrainerCallback):  # type: ignore[misc]
    """Pass it to the Trainer: `Trainer(..., callbacks=[TrackerBridgeCallback()])`, with `report_to="none"`.

    Args:
        config: As in `tracker_bridge.init`.
        run: A run that the script began and will close. Without one, the callback begins its own when training begins,
            and leaves it open for a later `evaluate` or `train`; `close()`, or the end of the process, closes it.
        watch: Options of `Run.watch`; False watches no gradients.
        init_options: More for `tracker_bridge.init` (project, tags, ...).

    The run's id is kept in each checkpoint; `train(resume_from_checkpoint=...)` goes on with that run, unless `run` or
    a `run_id` is given. Each trial of a hyper-parameter search is a run of its own.
    """

    def __init__(
        self, config: Any = None, *, run: Run | None = None, watch: bool | Mapping[str, Any] = True, **init_options: Any
    ) -> None:
        self._config, self._given, self._options = config, run, init_options
        self._watch: Mapping[str, Any] | None = None if watch is False else {} if watch is True else dict(watch)
        self._own: Run | None = None
        self._stop: list[Callable[[], None]] = []
        self._steps = 0

    @property
    def run(self) -> Run | None:
        """The run in use; None before training has begun."""
        return self._given if self._given is not None else self._own

    def close(self, status: str = "finished") -> None:
        """End the watching, and the run if the callback began it."""
        self._unwatch()
        if self._own is not None:
            self._own.close(status)
            self._own = None

    # --- what the Trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin or continue the run, log its params, watch the gradients."""
        del control
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        trial = getattr(state, "trial_name", None) if getattr(state, "is_hyper_param_search", False) else None
        if trial is not None:
            self.close()
        run = self._begin(args, state, trial)
        if isinstance(getattr(state, "stateful_callbacks", None), dict):
            # Saved with each checkpoint. As an `ExportableState` of Trainer's, this callback would be replaced at a
            # resume by one without the script's configuration.
            state.stateful_callbacks[_KEPT] = {"args": {}, "attributes": {"run_id": run.id}}
        run.log_params(_params(args, model))
        self._steps = int(state.global_step)
        if self._watch is not None and model is not None and optimizer is not None:
            self._unwatch()
            self._begin_watching(run, model, optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update is done; the Trainer has counted it."""
        del args, control, kwargs
        self._steps = int(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Log what the Trainer logs, under the names that its other integrations use (`train/loss`, `eval/loss`)."""
        del args, control, kwargs
        run = self.run
        if run is None or not logs or not state.is_world_process_zero:
            return
        numbers: dict[str, Any] = {}
        for name, value in logs.items():
            if isinstance(value, (int, float)) or getattr(value, "ndim", None) == 0:
                numbers[_series(name)] = value
            elif value is not None:
                run.log_text(_series(name), str(value), state.global_step)
        if numbers:
            run.log_metrics(numbers, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching; what `evaluate` logs later still belongs to the run."""
        del args, state, control, kwargs
        self._unwatch()

    # --- inside

    def _begin(self, args: Any, state: Any, trial: str | None) -> Run:
        if self.run is not None:
            return self.run
        options = dict(self._options)
        options.setdefault("name", trial or getattr(args, "run_name", None))
        kept = _id_in(state)
        if kept is not None and "run_id" not in options and trial is None:
            try:
                self._own = init(self._config, **{**options, "run_id": kept, "resume": True})
            except UsageError as problem:
                _say(f"the checkpoint's run is not continued, a new one begins: {problem}")
        if self._own is None:
            self._own = init(self._config, **options)
        return self._own

    def _begin_watching(self, run: Run, model: Any, optimizer: Any) -> None:
        options: dict[str, Any] = {"scaler": getattr(optimizer, "scaler", None), **(self._watch or {})}
        # Before the update `global_step` counts those that are done; the Trainer logs this one under the next number.
        options.setdefault("step", lambda: self._steps + 1)
        try:
            collector = run.watch(model, optimizer, **options)
            self._stop += [watch_clipping(model, collector), collector.detach]
        except (TypeError, ValueError) as problem:
            if self._watch:
                raise
            _say(f"gradients are not watched: {problem}")

    def _unwatch(self) -> None:
        while self._stop:
            self._stop.pop(0)()


def _id_in(state: Any) -> str | None:
    """The run id in the trainer state that a checkpoint gave back."""
    kept = (getattr(state, "stateful_callbacks", None) or {}).get(_KEPT)
    found = (kept or {}).get("attributes", {}).get("run_id")
    return str(found) if found else None


def _params(args: Any, model: Any) -> dict[str, Any]:
    params = dict(args.to_dict())
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        params["model"] = config.to_dict()
    return params


def _series(name: str) -> str:
    for split in _SPLITS:
        if name.startswith(split):
            return f"{split[:-1]}/{name[len(split) :]}"
    return f"train/{name}"


def _say(text: str) -> None:
    sys.stderr.write(f"tracker_bridge: {text}\n")
