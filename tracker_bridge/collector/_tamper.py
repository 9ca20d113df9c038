"""Whether a script changed the gradients between backward and the optimizer's step, most likely by clipping them.

A hook on two parameters, there only while the coming step is due, notes the versions of their gradients when backward
is over; every in-place operation raises them. Of sharded gradients a few elements are copied and compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor, nn

from tracker_bridge.collector._plan import Plan

_SAMPLE = 64  # elements of a shard; multi-tensor operations on a DTensor raise no version that could be asked


class Changes(msgspec.Struct, frozen=True):
    """At most `operations` in-place operations on a plain gradient, and for each shard whether it differs."""

    operations: int
    differs: list[Tensor]


class TamperWatch:
    """Watches the gradients of a few parameters from `arm` to `disarm`; one that takes part in backward is enough."""

    def __init__(self) -> None:
        self._armed: list[tuple[weakref.ref[nn.Parameter], Callable[[], None]]] = []
        self._plan: Plan | None = None
        self._versions: dict[int, int] = {}
        self._samples: dict[int, Tensor] = {}

    def arm(self, plan: Plan) -> None:
        """Start to watch the first and the last slot of a plan; what was watched before no longer is."""
        if self._plan is plan and not plan.stale:
            return
        parameters = plan.ends()
        watched = [reference() for reference, _ in self._armed]
        if len(watched) != len(parameters) or any(a is not b for a, b in zip(watched, parameters, strict=True)):
            self.disarm()
            for parameter in parameters:
                handle = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
                self._armed.append((weakref.ref(parameter), handle.remove))
        self._plan = plan

    def disarm(self) -> None:
        """Stop to watch."""
        self._plan = None
        while self._armed:
            self._armed.pop()[1]()
        self._versions.clear()
        self._samples.clear()

    def saw_backward(self) -> bool:
        """Whether a backward pass has reached all that is watched since the last `changes`."""
        return 0 < len(self._armed) <= len(self._versions) + len(self._samples)

    def changes(self) -> Changes:
        """What has happened to the gradients since backward; nothing if nothing is known."""
        most, differs = 0, []
        for reference, _ in self._armed:
            parameter = reference()
            gradient = None if parameter is None else parameter.grad
            if gradient is None:
                continue
            if id(parameter) in self._versions:
                most = max(most, gradient._version - self._versions[id(parameter)])
            elif id(parameter) in self._samples:
                now, before = _sample(gradient), self._samples[id(parameter)]
                if now.shape == before.shape:
                    differs.append((now.ne(before) & ~(now.isnan() & before.isnan())).any())
        self._versions.clear()
        self._samples.clear()
        return Changes(most, differs)

    def _accumulated(self, parameter: Tensor) -> None:
        # At the very end of backward, after DDP's own final callback, which writes the averaged gradients: callbacks
        # run in the order in which they were queued, so this one queues the one that counts.
        engine = torch.autograd.Variable._execution_engine
        reference = weakref.ref(parameter)

        def note() -> None:
            alive = reference()
            if not self._armed or alive is None or alive.grad is None or alive.grad.is_inference():
                return
            if hasattr(alive.grad, "_local_tensor"):
                self._samples[id(alive)] = _sample(alive.grad).clone()
            else:
                self._versions[id(alive)] = alive.grad._version

        try:
            engine.queue_callback(lambda: engine.queue_callback(note))
        except Exception:
            self.disarm()  # not called from the engine: nothing can be known


def _sample(gradient: Tensor) -> Tensor:
    """A few elements of this process's shard of a DTensor."""
    shard: Tensor = gradient._local_tensor  # type: ignore[attr-defined]
    return shard.detach().reshape(-1)[:_SAMPLE]
