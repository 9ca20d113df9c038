"""Which layers are measured, and how the collector explains it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from tracker_bridge.collector import GradientNormCollector


def selected(model: nn.Module, **options: object) -> list[str]:
    return list(GradientNormCollector(model, **options).explain().selected)


def bert() -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=12, num_attention_heads=2, intermediate_size=32)
    )


def test_globs_match_names_and_module_paths() -> None:
    """A glob is matched against clean names, and selects a whole module by its path."""
    model = bert()
    assert all(n.startswith("bert.encoder.layer.") for n in selected(model, include=["bert.encoder.layer.*"]))
    one = selected(model, include="bert.encoder.layer.1")
    assert len(one) == 16
    assert not any("layer.11" in n for n in one)  # naive prefix matching takes layers 10 and 11 along
    assert not any(n.endswith("bias") for n in selected(model, exclude=["*.bias"]))


def test_regexes_types_and_callables() -> None:
    """`re:` patterns are searched, module classes select what lies inside them, callables decide on name and tensor."""
    model = bert()
    assert selected(model, include=r"re:layer\.(0|11)\.attention\.self\.query\.weight$") == [
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.11.attention.self.query.weight",
    ]
    assert len(selected(model, include=nn.Embedding)) == 3
    assert len(selected(model, include=[nn.LayerNorm], exclude=["*embeddings*"])) == 48
    assert selected(model, include=lambda name, p: p.dim() == 2 and "classifier" in name) == ["classifier.weight"]


def test_exclude_wins() -> None:
    """What both include and exclude match is not measured."""
    assert selected(nn.Linear(2, 2), include="weight", exclude="w*") == []


PARTS = {
    "bert": (
        bert,
        {
            "attention": "bert.encoder.layer.3.attention.output.dense.weight",
            "mlp": "bert.encoder.layer.3.output.dense.weight",
            "embeddings": "bert.embeddings.position_embeddings.weight",
            "norms": "bert.encoder.layer.3.attention.output.LayerNorm.weight",
            "head": "classifier.weight",
            "last": "bert.encoder.layer.11.intermediate.dense.bias",
        },
    ),
    "distilbert": (
        lambda: DistilBertForSequenceClassification(
            DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
        ),
        {
            "attention": "distilbert.transformer.layer.0.attention.out_lin.weight",
            "mlp": "distilbert.transformer.layer.0.ffn.lin1.weight",
            "embeddings": "distilbert.embeddings.word_embeddings.weight",
            "norms": "distilbert.transformer.layer.1.sa_layer_norm.weight",
            "head": "pre_classifier.weight",
        },
    ),
    "gpt2": (
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16)),
        {
            "attention": "transformer.h.0.attn.c_proj.weight",
            "mlp": "transformer.h.1.mlp.c_proj.weight",
            "embeddings": "transformer.wpe.weight",
            "norms": "transformer.ln_f.weight",
            "last": "transformer.h.1.ln_1.weight",
        },
    ),
    "llama": (
        lambda: LlamaForCausalLM(
            LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
        ),
        {
            "attention": "model.layers.0.self_attn.o_proj.weight",
            "mlp": "model.layers.0.mlp.down_proj.weight",
            "embeddings": "model.embed_tokens.weight",
            "norms": "model.layers.1.post_attention_layernorm.weight",
            "head": "lm_head.weight",
        },
    ),
    "t5": (
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
        ),
        {
            "attention": "decoder.block.1.layer.1.EncDecAttention.q.weight",
            "mlp": "encoder.block.0.layer.1.DenseReluDense.wo.weight",
            "embeddings": "shared.weight",
            "norms": "encoder.final_layer_norm.weight",
            "last": "decoder.block.1.layer.0.SelfAttention.k.weight",
        },
    ),
    "vit": (
        lambda: ViTForImageClassification(
            ViTConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=8,
                patch_size=4,
            )
        ),
        {"embeddings": "vit.embeddings.cls_token", "norms": "vit.layernorm.weight", "head": "classifier.bias"},
    ),
    "torch": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
        ),
        {
            "attention": "layers.0.self_attn.in_proj_weight",
            "mlp": "layers.1.linear2.bias",
            "norms": "layers.0.norm1.weight",
            "last": "layers.1.self_attn.out_proj.weight",
        },
    ),
}


@pytest.mark.parametrize("family", PARTS)
def test_parts_of_the_common_families(family: str) -> None:
    """Each part contains its typical layer, the main parts are disjoint, and every layer of a block has one."""
    build, examples = PARTS[family]
    model = build()
    rows = {row.name: row for row in GradientNormCollector(model).explain()}
    for part, name in examples.items():
        assert part in rows[name].parts, (name, rows[name].parts)
        assert name in selected(model, parts=part)
    for row in rows.values():
        assert len(set(row.parts) - {"last"}) <= 1, row
    blocks = [r for r in rows.values() if any(f".{i}." in r.name for i in range(12))]
    assert all(set(r.parts) - {"last"} for r in blocks), [r.name for r in blocks if not set(r.parts) - {"last"}]


def test_part_and_include_add_up() -> None:
    """`parts` and `include` are one union; `exclude` is taken from it."""
    model = bert()
    both = set(selected(model, parts=["head"], include=["bert.pooler.*"]))
    assert both == {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight", "bert.pooler.dense.bias"}


def test_explain_gives_a_reason_for_every_layer() -> None:
    """The table names each parameter, the decision and why."""
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].bias, *model[1].parameters(), model[2].weight], lr=0.1)
    collector = GradientNormCollector(model, include=["0.*", "*.bias", "2.weight"], exclude=[nn.LayerNorm])
    collector.attach(optimizer)
    reasons = {row.name: (row.selected, row.reason) for row in collector.explain()}
    assert reasons == {
        "0.weight": (False, "frozen (requires_grad is False)"),
        "0.bias": (True, "included by '0.*'"),
        "1.weight": (False, "excluded by LayerNorm"),
        "1.bias": (False, "excluded by LayerNorm"),
        "2.weight": (True, "included by '2.weight'"),
        "2.bias": (False, "not in the attached optimizer"),
    }
    text = str(collector.explain())
    assert "2 of 6 parameters are measured" in text
    assert "excluded by LayerNorm" in text


def test_a_pattern_that_matches_nothing_is_named() -> None:
    """A typo in `include` is pointed out with the nearest name, at construction."""
    with pytest.warns(UserWarning, match=r"include: 'wieght' matches no parameter \(nearest: 'weight'\)"):
        collector = GradientNormCollector(nn.Linear(2, 2), include=["wieght", "bias"])
    assert collector.explain().notes == ("include: 'wieght' matches no parameter (nearest: 'weight')",)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every_n_steps": 0}, ValueError, "every_n_steps: expected at least 1, got 0"),
        ({"every_n_steps": 2.5}, TypeError, "every_n_steps: expected an int"),
        ({"rotate": 0}, ValueError, "rotate"),
        ({"norm_type": 0}, ValueError, "norm_type"),
        ({"norm_type": "two"}, TypeError, "norm_type"),
        ({"include": "re:("}, ValueError, "include: 're:\\(' is not a regular expression"),
        ({"include": [3]}, TypeError, "include: expected a glob"),
        ({"exclude": [int]}, TypeError, "exclude: int is a class but no torch.nn.Module"),
        ({"parts": "atention"}, ValueError, "unknown part 'atention'; did you mean 'attention'"),
        ({"sink": 3}, TypeError, "sink: expected a callable"),
    ],
)
def test_misuse_raises_and_names_the_argument(options: dict[str, object], error: type[Exception], message: str) -> None:
    """A wrong argument is an error at construction that says which."""
    with pytest.raises(error, match=message):
        GradientNormCollector(nn.Linear(2, 2), **options)


def test_misuse_of_the_model_and_of_attach() -> None:
    """What is no model, no optimizer or no scaler is refused by name."""
    with pytest.raises(TypeError, match="model: expected a torch\\.nn\\.Module, got list"):
        GradientNormCollector([])  # type: ignore[arg-type]
    collector = GradientNormCollector(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="optimizer: expected a torch\\.optim\\.Optimizer, got int"):
        collector.attach(3)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(TypeError, match="scaler: expected a torch\\.amp\\.GradScaler, got str"):
        collector.attach(optimizer, scaler="yes")
    assert not optimizer._optimizer_step_pre_hooks
