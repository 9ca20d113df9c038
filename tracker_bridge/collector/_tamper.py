"""Whether a script changed the gradients between backward and the optimizer's step, most likely by clipping them.

A hook on one parameter, there only while the coming step is due, notes the version of its gradient when backward is
over; every in-place operation raises it. The gradient itself is neither read nor kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn


class TamperWatch:
    """Watches the gradient of one parameter from `arm` to `changes`."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._parameter: weakref.ref[nn.Parameter] | None = None
        self._remove: Callable[[], None] | None = None

    def arm(self, parameter: nn.Parameter) -> None:
        """Start to watch `parameter`; what was watched before no longer is."""
        if self._remove is not None and self._parameter is not None and self._parameter() is parameter:
            return
        self.disarm()
        self._parameter = weakref.ref(parameter)
        handle = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
        self._remove = handle.remove

    def disarm(self) -> None:
        """Stop to watch."""
        if self._remove is not None:
            self._remove()
        self._remove, self._version = None, None

    def changes(self) -> int:
        """How many in-place operations the gradient has seen since backward; 0 if nothing is known. Disarms."""
        parameter = None if self._parameter is None else self._parameter()
        version = self._version
        self.disarm()
        if parameter is None or version is None or parameter.grad is None:
            return 0
        return max(0, parameter.grad._version - version)

    def _accumulated(self, parameter: Tensor) -> None:
        # At the very end of backward, after DDP's own final callback, which writes the averaged gradients: callbacks
        # run in the order in which they were queued, so this one queues the one that counts.
        engine = torch.autograd.Variable._execution_engine
        reference = weakref.ref(parameter)

        def note() -> None:
            alive = reference()
            if self._remove is not None and alive is not None and alive.grad is not None:
                self._version = alive.grad._version

        try:
            engine.queue_callback(lambda: engine.queue_callback(note))
        except Exception:
            self.disarm()  # not called from the engine: nothing can be known
