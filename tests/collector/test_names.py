"""Clean names and the life of a model after `watch`."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import time
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations

from tracker_bridge.collector import GradientNormCollector, GradientNorms, _plan


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


def attached(model: nn.Module) -> tuple[torch.optim.Optimizer, list[GradientNorms]]:
    """An optimizer of the model's parameters, and what a collector records at its steps (the first is taken here)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[GradientNorms] = []
    GradientNormCollector(model, sink=seen.append).attach(optimizer)
    backward(model)
    optimizer.step()
    return optimizer, seen


def test_parameters_that_the_optimizer_does_not_know_are_measured_at_once() -> None:
    """After `assign=True` the optimizer steps dead tensors (naive: their stale gradients are recorded for ever)."""
    model = Inner()
    optimizer, seen = attached(model)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    backward(model)
    optimizer.step()
    expected = {n: float(p.grad.norm()) for n, p in model.named_parameters()}
    assert dict(seen[-1].layers) == pytest.approx(expected, rel=1e-5)


def test_a_layer_that_leaves_the_model_is_noticed_where_its_gradient_is_gone() -> None:
    """The optimizer still holds the replaced layer, without a gradient: it is no layer of the model any more."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    optimizer, seen = attached(model)
    model[1] = nn.Linear(4, 4)
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert list(seen[-1].table.names) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_layer_that_leaves_the_model_with_its_gradient_is_noticed_soon() -> None:
    """Its stale gradient is what the optimizer steps with; 16 measurements later, or after a second, it is gone."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    optimizer, seen = attached(model)
    model[1] = nn.Linear(4, 4)
    for _ in range(17):
        backward(model)
        optimizer.step()
    assert list(seen[-1].table.names) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_layer_that_leaves_the_model_is_noticed_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps take long, the model is looked at each time."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    optimizer, seen = attached(model)
    model[1] = nn.Linear(4, 4)
    later = time.monotonic() + 1.5
    monkeypatch.setattr(_plan.time, "monotonic", lambda: later)
    backward(model)
    optimizer.step()
    assert list(seen[-1].table.names) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_what_takes_the_place_of_a_parameter_in_model_and_optimizer_is_measured() -> None:
    """Libraries put sharded or converted parameters into both; the next record is of those."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    optimizer, seen = attached(model)
    old = model[1].weight
    model[1].weight = nn.Parameter(torch.randn(4, 4))
    held = optimizer.param_groups[0]["params"]
    held[2] = model[1].weight
    assert old.grad is not None
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    expected = {n: float(p.grad.norm()) for n, p in model.named_parameters()}
    assert dict(seen[-1].layers) == pytest.approx(expected, rel=1e-5)


def test_freezing_unfreezing_and_new_groups_are_noticed_at_once_with_an_optimizer() -> None:
    """The optimizer holds all of the model from the beginning; what is frozen is not measured."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    model[1].requires_grad_(False)
    optimizer, seen = attached(model)
    assert "1.weight" not in seen[-1].table.names
    model[1].requires_grad_(True)
    backward(model)
    optimizer.step()
    assert "1.weight" in seen[-1].layers
    model[0].requires_grad_(False)
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert "0.weight" not in seen[-1].table.names
    model.append(nn.Linear(4, 4))
    optimizer.add_param_group({"params": list(model[3].parameters())})
    backward(model)
    optimizer.step()
    assert "3.weight" in seen[-1].layers


def test_groups_in_another_order_than_the_model_keep_their_names() -> None:
    """Weights and biases in two groups, in reverse: each norm stands under its own name at every step."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    weights = [p for p in model.parameters() if p.dim() == 2]
    biases = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.SGD([{"params": weights[::-1]}, {"params": biases[1:]}], lr=0.1)
    seen: list[GradientNorms] = []
    GradientNormCollector(model, sink=seen.append, exclude="2.weight").attach(optimizer)
    for _ in range(5):
        backward(model)
        optimizer.step()
        wanted = {n: p for n, p in model.named_parameters() if n not in ("0.bias", "2.weight")}
        assert dict(seen[-1].layers) == pytest.approx({n: float(p.grad.norm()) for n, p in wanted.items()}, rel=1e-5)


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


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_a_peft_model_whose_adapter_is_changed_after_watch() -> None:
    """PEFT itself on a BERT: the adapter in use is measured, a part of it chosen, and another one when that is set."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    bert = BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
    )
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"])
    model = get_peft_model(bert, lora)
    optimizer = torch.optim.AdamW(model.parameters())
    seen: dict[str, list[GradientNorms]] = {"all": [], "attention": []}
    everything = GradientNormCollector(model, sink=seen["all"].append)
    attention = GradientNormCollector(model, parts="attention", sink=seen["attention"].append)
    for collector in (everything, attention):
        collector.attach(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=torch.randint(0, 50, (2, 8)), labels=torch.tensor([0, 1])).loss.backward()
        true = {n: float(p.grad.double().norm()) for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        assert seen["all"][-1].layers == pytest.approx(true, rel=1e-6)
        assert list(seen["attention"][-1].layers) == [name for name in true if ".attention." in name]

    step()
    assert len(seen["all"][-1].layers) == 2 * 2 * 2 + 2
    assert all("default" in name for name in seen["all"][-1].layers)
    model.add_adapter("second", LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query"]))
    model.set_adapter("second")
    optimizer.add_param_group({"params": [p for name, p in model.named_parameters() if "second" in name]})
    step()
    assert len(seen["attention"][-1].layers) == 2 * 2
    assert all("second" in name for name in seen["all"][-1].layers)
    model.set_adapter("default")
    step()
    step()
    assert len(seen["all"][-1].layers) == 2 * 2 * 2 + 2
    assert not everything.faults
    assert not attention.faults
