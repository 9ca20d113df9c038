"""Clean names and the life of a model after `watch`."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations

from tracker_bridge.collector import GradientNormCollector, GradientNorms


class Inner(nn.Module):
    """A user's model with a sub-module that is really called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.module(x))


NAMES = ["module.weight", "module.bias", "head.weight", "head.bias"]


def backward(model: nn.Module, width: int = 4) -> None:
    model.zero_grad()
    model(torch.randn(3, width)).pow(2).sum().backward()


def collect(collector: GradientNormCollector) -> GradientNorms:
    norms = collector.collect()
    assert norms is not None, collector.faults
    assert not collector.faults
    return norms


def names(model: nn.Module) -> list[str]:
    return list(collect(GradientNormCollector(model)).layers)


def test_a_users_own_submodule_called_module_keeps_its_name() -> None:
    """`module.` is a prefix only where DDP or DataParallel put it (naive: 'weight' twice)."""
    model = Inner()
    backward(model)
    assert names(model) == NAMES


def test_wrappers_in_any_nesting_are_removed() -> None:
    """torch.compile, DataParallel and checkpoint wrappers leave no trace in a name."""
    model = Inner()
    model.head = checkpoint_wrapper(model.head)
    wrapped = nn.DataParallel(torch.compile(checkpoint_wrapper(model), backend="eager"))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert "_orig_mod._checkpoint_wrapped_module" in next(iter(dict(wrapped.named_parameters())))
    assert names(wrapped) == NAMES


def test_compiled_layers_inside_a_model() -> None:
    """Compiling single blocks changes no name and hides no block."""
    model = nn.Sequential(*[torch.compile(nn.Linear(4, 4), backend="eager") for _ in range(2)])
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    norms = collect(GradientNormCollector(model))
    assert list(norms.layers) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert norms.table.block_prefixes == ("0", "1")


def test_tied_weights_are_measured_once_and_selected_by_either_name() -> None:
    """A shared tensor is one layer, whichever of its names the script uses."""
    model = nn.Module()
    model.embed, model.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    model.out.weight = model.embed.weight
    model.embed.weight.grad = torch.ones(5, 4)
    assert names(model) == ["embed.weight"]
    for pattern in ("out.*", "embed.weight"):
        assert list(collect(GradientNormCollector(model, include=pattern)).layers) == ["embed.weight"]


def test_shared_modules_count_once() -> None:
    """A module that is used in two places is measured once."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    backward(model)
    assert names(model) == ["0.weight", "0.bias"]
    assert list(collect(GradientNormCollector(model, include="2.weight")).layers) == ["0.weight"]


def test_parametrized_weights_are_found_by_the_plain_name() -> None:
    """The tensors behind a parametrization are measured; `weight` of the layer selects them."""
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    backward(model)
    originals = ["0.parametrizations.weight.original0", "0.parametrizations.weight.original1"]
    assert list(collect(GradientNormCollector(model, include="0.weight")).layers) == originals
    assert list(collect(GradientNormCollector(model, include=nn.Linear, exclude="*bias")).layers) == [
        *originals,
        "1.weight",
    ]


def test_replaced_parameters_are_followed() -> None:
    """`load_state_dict(assign=True)` puts new tensors into the modules; those are measured (naive: the dead ones)."""
    model = Inner()
    collector = GradientNormCollector(model)
    backward(model)
    first = collect(collector)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    backward(model)
    second = collect(collector)
    expected = {n: float(p.grad.norm()) for n, p in model.named_parameters()}
    assert dict(second.layers) == pytest.approx(expected, rel=1e-5)
    assert second.table is first.table


def test_to_empty_and_dtype_changes_are_followed() -> None:
    """A model built on the meta device is measured once it is real, also after a change of dtype."""
    with torch.device("meta"):
        model = Inner()
    collector = GradientNormCollector(model)
    model.to_empty(device="cpu")
    for p in model.parameters():
        nn.init.ones_(p)
    backward(model)
    assert list(collect(collector).layers) == NAMES
    model.double()
    model(torch.randn(3, 4, dtype=torch.float64)).sum().backward()
    assert list(collect(collector).layers) == NAMES


def test_frozen_layers_are_left_out_and_unfreezing_brings_them_in() -> None:
    """Freezing and unfreezing after `watch` changes what is measured; returning to a set returns to its table."""
    model = Inner()
    model.module.requires_grad_(False)
    collector = GradientNormCollector(model)
    backward(model)
    frozen = collect(collector)
    assert list(frozen.layers) == list(frozen.table.names) == ["head.weight", "head.bias"]
    model.module.requires_grad_(True)
    backward(model)
    assert list(collect(collector).layers) == NAMES
    model.module.requires_grad_(False)
    backward(model)
    model.module.zero_grad()
    assert collect(collector).table is frozen.table


def test_added_and_removed_layers() -> None:
    """A layer that is added after `watch` appears, a removed one disappears and is freed."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    collector = GradientNormCollector(model)
    backward(model)
    assert len(collect(collector).layers) == 4
    model.append(nn.Linear(4, 4))
    backward(model)
    assert list(collect(collector).layers)[-1] == "2.bias"
    dead = [weakref.ref(p) for p in model[1].parameters()]
    del model[1]
    gc.collect()
    assert [r() for r in dead] == [None, None]  # naive: a cached list keeps removed layers alive
    backward(model)
    assert list(collect(collector).layers) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_no_gradient_is_kept_alive() -> None:
    """After a collected step nothing of the collector refers to a gradient."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)], nn.Linear(64, 300))
    collector = GradientNormCollector(model, sink=lambda norms: None)
    backward(model, 64)
    norms = collect(collector)
    dead = [weakref.ref(p.grad) for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    gc.collect()
    assert not any(r() is not None for r in dead)
    assert norms.total is not None


def test_optimizers_can_be_pickled_and_copied() -> None:
    """A watched optimizer pickles and deep-copies; the copy is not watched and steps."""
    model = Inner()
    optimizer = torch.optim.AdamW(model.parameters())
    seen: list[GradientNorms] = []
    collector = GradientNormCollector(model, sink=seen.append)
    collector.attach(optimizer)
    backward(model)
    optimizer.step()
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        other.step()
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    assert [norms.step for norms in seen] == [0]


def test_block_prefixes_are_the_repeated_layers() -> None:
    """Items of a container with at least two of a class are blocks; heads, activations and inner lists are not."""
    block = [nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(3, 4), nn.ModuleList(block), nn.Linear(4, 2))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert collect(GradientNormCollector(model)).table.block_prefixes == ("1.0", "1.1", "1.2")


def test_lora_adapters_next_to_frozen_weights() -> None:
    """Only the adapters of a LoRA model are measured, and PEFT's prefix need not be written."""

    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer = nn.Linear(4, 4).requires_grad_(False)
            self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 4, bias=False)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))

    model = nn.Module()
    model.base_model = nn.Module()
    model.base_model.model = nn.Sequential(Lora(), Lora())
    model.base_model.model(torch.randn(2, 4)).sum().backward()
    found = collect(GradientNormCollector(model, include="0.lora_A.*"))
    assert list(found.layers) == ["base_model.model.0.lora_A.default.weight"]
    assert len(collect(GradientNormCollector(model)).layers) == 4
    assert found.table.block_prefixes == ("base_model.model.0", "base_model.model.1")
