"""Named parts of a transformer (attention, mlp, embeddings, norms, head, last), read off classes and names.

Knows the naming habits of the common model families; a parameter may be in several parts (`last` overlaps others).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

from tracker_bridge.collector._names import NamedParameter

PARTS = ("attention", "mlp", "embeddings", "norms", "head", "last")
"""The parts that can be asked for. `last` is the last block of each stack of repeated layers, or the last layer."""

Parts = Mapping[str, frozenset[str]]
"""Clean parameter name -> the parts that it is in."""

_NORM_CLASS = re.compile(r"norm", re.IGNORECASE)
_NORM_NAME = re.compile(
    r"^(ln|ln_?[0-9a-z]{1,2}|layer_?norm\w*|norm\w*|\w+_norm|\w*layernorm|rms\w*|bn\d*)$", re.IGNORECASE
)
_EMBEDDING = re.compile(
    r"embed|^(wte|wpe)$|^(pos|cls|mask|dist(illation)?)_(token|emb\w*)$|relative_attention_bias", re.IGNORECASE
)
_ATTENTION = re.compile(
    r"att(entio)?n|^(wqkv|qkv|[qkvo]_?proj|query|key|value|q_lin|k_lin|v_lin|out_lin|c_attn|in_proj_weight|in_proj_bias)$",
    re.IGNORECASE,
)
_MLP = re.compile(
    r"mlp|feed_?forward|ffn|densereludense|densegateddense|denseactdense|intermediate|experts?$|^moe"
    r"|^(fc_?[12]|linear_?[12]|lin[12]|wi(_[01])?|wo|w[123]|gate_proj|up_proj|down_proj|dense_h_to_4h|dense_4h_to_h|c_fc)$",
    re.IGNORECASE,
)
_HEAD = re.compile(
    r"head|^(classifier|classification|cls|score|qa_outputs|output_layer|fc|logits|pre_classifier|proj_out|decoder_out|to_logits|unembed)$",
    re.IGNORECASE,
)


def parts_of(parameters: Sequence[NamedParameter], blocks: Sequence[str]) -> dict[str, frozenset[str]]:
    """The parts of each parameter of one model; `blocks` are the paths of its repeated layers."""
    last = _last_paths(parameters, blocks)
    ordered = sorted(blocks, key=len, reverse=True)
    return {
        parameter.name: frozenset(
            {_main_part(parameter, ordered)} - {""} | ({"last"} if _inside(parameter.name, last) else set())
        )
        for parameter in parameters
    }


def _main_part(parameter: NamedParameter, blocks: Sequence[str]) -> str:
    """The one part that a parameter belongs to by what it does; a norm inside an attention module is a norm."""
    owner = parameter.places[-1]
    steps = parameter.name.split(".")
    if _NORM_CLASS.search(owner.kind.__name__) or (len(steps) > 1 and _NORM_NAME.match(steps[-2])):
        return "norms"
    if issubclass(owner.kind, nn.Embedding | nn.EmbeddingBag):
        return "embeddings"
    block = next((b for b in blocks if parameter.name.startswith(b + ".")), "")
    inner = [place for place in parameter.places if len(place.path) > len(block)] if block else parameter.places[1:]
    words = [w for place in inner for w in (place.path.rpartition(".")[2], place.kind.__name__)] + steps[-1:]
    if not block and any(_EMBEDDING.search(word) for word in words):
        return "embeddings"
    if not block and any(_HEAD.search(word) for word in words):
        return "head"
    if any(_ATTENTION.search(word) for word in words):
        return "attention"
    if any(_MLP.search(word) for word in words):
        return "mlp"
    if block and _is_bert_output(parameter, block):
        return "mlp"
    return ""


def _is_bert_output(parameter: NamedParameter, block: str) -> bool:
    """BERT and its descendants call the second half of the MLP just `output.dense`."""
    return parameter.name.startswith(block + ".output.")


def _last_paths(parameters: Sequence[NamedParameter], blocks: Sequence[str]) -> tuple[str, ...]:
    if blocks:
        stacks: dict[str, str] = {}
        for block in blocks:
            stacks[block.rpartition(".")[0]] = block
        return tuple(stacks.values())
    return (parameters[-1].places[-1].path,) if parameters else ()


def _inside(name: str, paths: Sequence[str]) -> bool:
    return any(not path or name.startswith(path + ".") for path in paths)
