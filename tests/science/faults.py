"""Twenty faults that are injected into healthy trainings, each with where and as what it should be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.science.trainings import (
    Batch,
    Convolutional,
    Recorder,
    Recurrent,
    Training,
    Transformer,
    adam,
    image_batches,
    perceptron,
    point_batches,
    sequence_batches,
    sgd,
    text_batches,
)
from tracker_bridge.records import AnyRecord

AT = 150
STEPS = AT + 12
"""The fault comes at step `AT`; what alerts within 10 steps counts."""

Spoil = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Fault:
    """`run()` gives the records; one of `rules` must alert, with a layer that starts with `layer` in the top 3.

    `layer` is None where the fault lies in no layer (a batch, the learning rate, the loss).
    """

    name: str
    run: Callable[[], list[AnyRecord]]
    rules: tuple[str, ...]
    layer: str | tuple[str, ...] | None = None


def _training(kind: str, seed: int = 0) -> Training:
    torch.manual_seed(seed)
    if kind == "transformer":
        model: nn.Module = Transformer()
        return Training(model, text_batches(seed), adam(model), STEPS)
    if kind == "clipped":
        model = Transformer()
        return Training(model, text_batches(seed), sgd(model, 0.1), STEPS, max_norm=0.3)
    if kind == "cnn":
        model = Convolutional()
        return Training(model, image_batches(seed), sgd(model), STEPS)
    if kind == "rnn":
        model = Recurrent()
        return Training(model, sequence_batches(seed), adam(model, 3e-3), STEPS)
    if kind == "sigmoid":
        model = perceptron(depth=4, activation=nn.Sigmoid)
        return Training(model, point_batches(seed), adam(model, 3e-3), STEPS)
    model = perceptron()
    return Training(model, point_batches(seed), adam(model), STEPS)


def spoil_model(kind: str, spoil: Spoil) -> Callable[[], list[AnyRecord]]:
    """Change the model once, before the forward of step `AT`."""

    def run() -> list[AnyRecord]:
        training = _training(kind)

        def before(training: Training, step: int, batch: Batch) -> Batch:
            if step == AT:
                with torch.no_grad():
                    spoil(training.model)
            return batch

        training.before_forward = before
        return training.run()

    return run


def spoil_batch(
    kind: str, change: Callable[[Tensor], Tensor], *, for_ever: bool = False
) -> Callable[[], list[AnyRecord]]:
    """Change the inputs at step `AT` (or from then on)."""

    def run() -> list[AnyRecord]:
        training = _training(kind)

        def before(training: Training, step: int, batch: Batch) -> Batch:
            return (change(batch[0]), batch[1]) if step == AT or (for_ever and step > AT) else batch

        training.before_forward = before
        return training.run()

    return run


def spoil_gradient(kind: str, layer: str, change: Callable[[Tensor], None]) -> Callable[[], list[AnyRecord]]:
    """Change the gradients of one layer after each backward from step `AT` on."""

    def run() -> list[AnyRecord]:
        training = _training(kind)

        def after(training: Training, step: int) -> None:
            if step >= AT:
                for name, parameter in training.model.named_parameters():
                    if name.startswith(layer) and parameter.grad is not None:
                        change(parameter.grad)

        training.after_backward = after
        return training.run()

    return run


def learning_rate_jump(kind: str, factor: float) -> Callable[[], list[AnyRecord]]:
    """Multiply the learning rate from step `AT` on."""

    def run() -> list[AnyRecord]:
        training = _training(kind)

        def before(training: Training, step: int, batch: Batch) -> Batch:
            training.rate_factor = factor if step >= AT else 1.0
            return batch

        training.before_forward = before
        return training.run()

    return run


def clipping_removed() -> list[AnyRecord]:
    """No clipping from step `AT` on, at a learning rate that needs it."""
    training = _training("clipped")

    def after(training: Training, step: int) -> None:
        if step >= AT:
            training.max_norm = None

    training.after_backward = after
    return training.run()


def nan_in_backward(kind: str, module: str) -> Callable[[], list[AnyRecord]]:
    """The gradient that reaches `module`'s output is NaN from step `AT` on."""

    def run() -> list[AnyRecord]:
        training = _training(kind)
        now = {"step": -1}

        def hook(_: nn.Module, __: object, output: Tensor) -> Tensor:
            if now["step"] >= AT:
                output.register_hook(lambda gradient: gradient * float("nan"))
            return output

        training.model.get_submodule(module).register_forward_hook(hook)

        def before(training: Training, step: int, batch: Batch) -> Batch:
            now["step"] = step
            return batch

        training.before_forward = before
        return training.run()

    return run


def cut(kind: str, module: str) -> Callable[[], list[AnyRecord]]:
    """`module`'s output is detached from step `AT` on."""

    def run() -> list[AnyRecord]:
        training = _training(kind)
        now = {"step": -1}
        training.model.get_submodule(module).register_forward_hook(
            lambda _, __, output: output.detach() if now["step"] >= AT else output
        )

        def before(training: Training, step: int, batch: Batch) -> Batch:
            now["step"] = step
            return batch

        training.before_forward = before
        return training.run()

    return run


def overflow_storm() -> list[AnyRecord]:
    """A real `GradScaler`, and from step `AT` on a layer whose gradients overflow float16 at any scale."""
    torch.manual_seed(0)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    recorder, batches = Recorder(model), point_batches(0)
    recorder.collector.attach(optimizer, scaler)
    now = {"step": -1}

    def overflow(gradient: Tensor) -> Tensor:
        return (gradient * 1e9).half().float() if now["step"] >= AT else gradient

    model[6].register_forward_hook(lambda _, __, output: (output.register_hook(overflow), None)[1])
    for step in range(STEPS):
        now["step"] = step
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.metrics(step, loss=float(loss.detach()))
    return recorder.finish()


def _parameter(name: str, change: Callable[[Tensor], object]) -> Spoil:
    return lambda model: void(change(model.get_parameter(name)))


def void(_: object) -> None:
    """Nothing."""


def _freeze(name: str) -> Spoil:
    return lambda model: void(model.get_submodule(name).requires_grad_(False))


SPIKE = ("spike", "explosion", "diverged")

FAULTS = (
    Fault("bad batch x1000, mlp", spoil_batch("mlp", lambda x: x * 1000), SPIKE),
    Fault("bad batch x1000, cnn", spoil_batch("cnn", lambda x: x * 1000 + 500), SPIKE),
    Fault("inputs no longer normalised", spoil_batch("mlp", lambda x: x * 50 + 100, for_ever=True), SPIKE),
    Fault(
        "learning rate x300, transformer", learning_rate_jump("transformer", 300), (*SPIKE, "dead_layer", "non_finite")
    ),
    Fault("learning rate x100, cnn", learning_rate_jump("cnn", 100), (*SPIKE, "non_finite")),
    Fault("learning rate x100, mlp", learning_rate_jump("mlp", 300), (*SPIKE, "dead_layer")),
    Fault("NaN in backward, transformer", nan_in_backward("transformer", "blocks.1.mlp"), ("non_finite",), "blocks.1"),
    Fault("NaN in backward, mlp", nan_in_backward("mlp", "3"), ("non_finite",), "3"),
    Fault("NaN in backward, rnn", nan_in_backward("rnn", "embedding"), ("non_finite",), "embedding"),
    Fault(
        "NaN weight",
        spoil_model("cnn", _parameter("blocks.0.2.weight", lambda p: p.view(-1)[0].fill_(float("nan")))),
        ("non_finite",),
    ),
    Fault("fp16 overflow storm", overflow_storm, ("overflow_storm",), "6"),
    Fault("frozen by mistake", spoil_model("transformer", _freeze("blocks.1")), ("no_gradient",), "blocks.1"),
    Fault("detached", cut("rnn", "embedding"), ("no_gradient",), "embedding"),
    Fault(
        "saturated sigmoid",
        spoil_model("sigmoid", _parameter("3.weight", lambda p: p.mul_(1e4))),
        ("vanishing", "dead_layer"),
        "3",
    ),
    Fault(
        "saturated sigmoid by its bias",
        spoil_model("sigmoid", _parameter("6.bias", lambda p: p.add_(30))),
        ("vanishing", "dead_layer"),
        "6",
    ),
    Fault("dead ReLU", spoil_model("mlp", _parameter("6.bias", lambda p: p.sub_(1000))), ("dead_layer",), "6"),
    Fault(
        "gradient of a layer zeroed",
        spoil_gradient("transformer", "blocks.2.mlp.2", lambda g: void(g.zero_())),
        ("dead_layer",),
        "blocks.2.mlp.2",
    ),
    Fault(
        "gradient of a layer x1000",
        spoil_gradient("transformer", "blocks.0.mlp.0", lambda g: void(g.mul_(1000))),
        SPIKE,
        "blocks.0.mlp.0",
    ),
    Fault("clipping removed", clipping_removed, ("clipping_stopped", *SPIKE)),
    Fault(
        "recurrent weights x20", spoil_model("rnn", _parameter("rnn.weight_hh_l0", lambda p: p.mul_(20))), SPIKE, "rnn."
    ),
)
