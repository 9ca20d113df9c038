"""`Run.watch` told something that cannot be meant, or that measures nothing: it says so and names the remedy."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracker_bridge as bridge


@pytest.fixture
def run(tmp_path: Path) -> Iterator[bridge.Run]:
    with bridge.init({"backends": "none", "queue": {"dir": str(tmp_path)}}) as run:
        yield run


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


def warned(action: Callable[[], object]) -> list[str]:
    """What the action warned of; the place of each warning is this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


def test_a_model_without_trainable_parameters_is_told(run: bridge.Run) -> None:
    """A frozen model, and one without any parameter: one warning that names the model and what to do."""
    frozen = small().requires_grad_(False)
    (text,) = warned(lambda: run.watch(frozen))
    assert "no parameter of Sequential" in text
    assert "requires_grad" in text
    (empty,) = warned(lambda: run.watch(nn.ReLU()))
    assert "ReLU has no parameters" in empty


def test_an_optimizer_of_another_model_is_told(run: bridge.Run) -> None:
    """The model was made anew after its optimizer: one hint, which names both and says when to ignore it."""
    model, old = small(), small()
    optimizer = torch.optim.SGD(old.parameters(), lr=0.1)
    (text,) = warned(lambda: run.watch(model, optimizer))
    assert "SGD holds none of the parameters of Sequential" in text
    assert "copies" in text


@pytest.mark.parametrize("kind", ["own", "some", "several", "masters", "flat", "view"])
def test_optimizers_of_own_parameters_or_of_copies_are_silent(run: bridge.Run, kind: str) -> None:
    """Its own parameters, float32 masters of a bfloat16 model, and flat buffers are what optimizers hold."""
    model = small()
    given: Any
    if kind == "own":
        given = torch.optim.SGD(model.parameters(), lr=0.1)
    elif kind == "some":
        given = torch.optim.SGD([*model[1].parameters(), nn.Parameter(torch.zeros(3))], lr=0.1)  # type: ignore[index]
    elif kind == "several":
        given = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]  # type: ignore[attr-defined]
    elif kind == "masters":
        model = model.bfloat16()
        given = torch.optim.SGD([p.detach().float() for p in model.parameters()], lr=0.1)
    elif kind == "flat":
        given = torch.optim.SGD([torch.zeros(sum(p.numel() for p in model.parameters()) + 7)], lr=0.1)
    else:
        flat = torch.zeros(100)
        for parameter in model.parameters():
            parameter.data = flat[: parameter.numel()].view_as(parameter)
        given = torch.optim.SGD([flat], lr=0.1)
    assert warned(lambda: run.watch(model, given)) == []


UNKNOWN = [
    ({"every_n_step": 2}, "watch: unknown option 'every_n_step'; did you mean 'every_n_steps'?"),
    ({"histogram": True}, "watch: unknown option 'histogram'; did you mean 'histograms'?"),
    ({"groupby": "block"}, "watch: unknown option 'groupby'; did you mean 'group_by'?"),
    ({"zzz": 1}, "watch: unknown option 'zzz'."),
    ({"sink": print}, "watch: unknown option 'sink'"),
]


@pytest.mark.parametrize(("options", "text"), UNKNOWN)
def test_an_unknown_option_gets_the_nearest_name(run: bridge.Run, options: dict[str, Any], text: str) -> None:
    """A mistyped option is a TypeError with the option that was probably meant, and all that there are."""
    with pytest.raises(TypeError, match=re.escape(text)) as caught:
        run.watch(small(), **options)
    assert "Options: activations, " in str(caught.value)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"activations": True}, "activations: expected "),
    ({"activations": [True]}, "activations: expected "),
    ({"include": True}, "include: expected "),
    ({"exclude": [3]}, "exclude: expected "),
    ({"parts": 3}, "parts: expected "),
    ({"every_n_steps": "10"}, "every_n_steps: expected an int, got str"),
    ({"rotate": 2.5}, "rotate: expected an int, got float"),
    ({"norm_type": "two"}, "norm_type: expected a number > 0 or inf, got 'two'"),
    ({"histograms": "yes"}, "histograms: expected True or False, got str"),
    ({"parameter_norms": 1}, "parameter_norms: expected True or False, got int"),
    ({"update_ratio": "yes"}, "update_ratio: expected True or False, got str"),
    ({"zero_fraction": []}, "zero_fraction: expected True or False, got list"),
    ({"step": 3}, "step: expected a callable, got int"),
    ({"on_fault": 3}, "on_fault: expected a callable, got int"),
    ({"group_by": 3}, "group_by: expected "),
    ({"name": 3}, "name: expected text, got int"),
    ({"optimizer": 3}, "optimizer: expected a torch.optim.Optimizer, got int"),
    ({"optimizer": small().parameters()}, "optimizer: expected a torch.optim.Optimizer, got generator"),
    ({"scaler": True}, "scaler: expected a torch.amp.GradScaler, got bool"),
    ({"model": 3}, "model: expected a torch.nn.Module, got int"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=[f"{next(iter(o))}-{i}" for i, (o, _) in enumerate(WRONG)])
def test_a_wrong_type_is_named_with_what_is_expected(run: bridge.Run, options: dict[str, Any], text: str) -> None:
    """Each option of a wrong type is a TypeError that begins with the option's name; nothing stays watched."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"model": model, "optimizer": optimizer, **options}
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        run.watch(arguments.pop("model"), arguments.pop("optimizer"), **arguments)
    assert not optimizer._optimizer_step_pre_hooks
    assert run.watch(model, optimizer) is not None
    assert run._kinds == {""}, "a call that failed has taken no name"


def test_a_closed_run_lets_go_of_the_model(tmp_path: Path) -> None:
    """After `close` a model that the script has dropped is freed, although the script still holds the run."""
    run = bridge.init({"backends": "none", "queue": {"dir": str(tmp_path)}})
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, activations="*", histograms=True, update_ratio=True, zero_fraction=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    alive = [weakref.ref(model), *(weakref.ref(parameter) for parameter in model.parameters())]
    run.close()
    del model, optimizer
    gc.collect()
    assert [reference() for reference in alive] == [None] * len(alive)
