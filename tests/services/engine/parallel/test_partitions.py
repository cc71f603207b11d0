"""Any number of partitions have every number of a layer together, each once."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from services.engine.families.decoder_weights import LayerWeights, Linear
from services.engine.families.registry import FAMILIES, open_weights
from services.engine.parallel.layout import Layout, Partition
from services.engine.spec import DecoderSpec
from services.engine.weights.folder import open_folder
from services.errors import SettingsError

ENDS = {"model.embed_tokens": ("vocab", "hidden"), "lm_head": ("vocab", "hidden")}
NORMS = {
    "model.layers.0.input_layernorm": ("hidden",),
    "model.layers.0.post_attention_layernorm": ("hidden",),
}
ATTENTION = {
    "model.layers.0.self_attn.q_proj": ("queries", "hidden"),
    "model.layers.0.self_attn.k_proj": ("keys", "hidden"),
    "model.layers.0.self_attn.v_proj": ("keys", "hidden"),
    "model.layers.0.self_attn.o_proj": ("hidden", "queries"),
}
MLP = {
    "model.layers.0.mlp.gate_proj": ("inner", "hidden"),
    "model.layers.0.mlp.up_proj": ("inner", "hidden"),
    "model.layers.0.mlp.down_proj": ("hidden", "inner"),
}
LLAMA = {
    **ENDS,
    **NORMS,
    **ATTENTION,
    **MLP,
    "model.layers.0.self_attn.q_norm": ("head",),
    "model.layers.0.self_attn.k_norm": ("head",),
}
OLMO2 = {
    **ENDS,
    **ATTENTION,
    **MLP,
    "model.layers.0.self_attn.q_norm": ("queries",),
    "model.layers.0.self_attn.k_norm": ("keys",),
    "model.layers.0.post_attention_layernorm": ("hidden",),
    "model.layers.0.post_feedforward_layernorm": ("hidden",),
}
GLM = {
    **ENDS,
    **NORMS,
    **ATTENTION,
    "model.layers.0.mlp.gate_up_proj": ("both halves", "hidden"),
    "model.layers.0.mlp.down_proj": ("hidden", "inner"),
}
COHERE = {**ENDS, **ATTENTION, **MLP, "model.layers.0.input_layernorm": ("hidden",)}
TENSORS: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": LLAMA,
    "ernie4_5": LLAMA,
    "glm": GLM,
    "glm4": {
        **GLM,
        "model.layers.0.post_self_attn_layernorm": ("hidden",),
        "model.layers.0.post_mlp_layernorm": ("hidden",),
    },
    "arcee": {name: sizes for name, sizes in LLAMA.items() if "gate_proj" not in name},
    "hunyuan_v1_dense": {
        **ENDS,
        **NORMS,
        **ATTENTION,
        **MLP,
        "model.layers.0.self_attn.query_layernorm": ("head",),
        "model.layers.0.self_attn.key_layernorm": ("head",),
    },
    "cohere": COHERE,
    "cohere2": COHERE,
    "granite": LLAMA,
    "smollm3": LLAMA,
    "qwen2_moe": LLAMA,
    "glm4_moe": LLAMA,
    "dots1": LLAMA,
    "ernie4_5_moe": LLAMA,
    "qwen3_moe": LLAMA,  # layers of experts are in test_experts.py
    "olmoe": LLAMA,
    "mixtral": LLAMA,
    "gpt_oss": {**LLAMA, "model.layers.0.self_attn.sinks": ("heads",)},
    "granitemoehybrid": {
        **ENDS,
        **NORMS,
        **ATTENTION,
        "model.layers.0.shared_mlp.input_linear": ("both halves", "hidden"),
        "model.layers.0.shared_mlp.output_linear": ("hidden", "inner"),
    },
    "olmo2": OLMO2,
    "olmo3": OLMO2,
    "exaone4": {
        **OLMO2,
        "model.layers.0.self_attn.q_norm": ("head",),
        "model.layers.0.self_attn.k_norm": ("head",),
    },
    "phi3": {
        **ENDS,
        **NORMS,
        "model.layers.0.self_attn.qkv_proj": ("fused", "hidden"),
        "model.layers.0.self_attn.o_proj": ("hidden", "queries"),
        "model.layers.0.mlp.gate_up_proj": ("both halves", "hidden"),
        "model.layers.0.mlp.down_proj": ("hidden", "inner"),
    },
    "gemma": LLAMA,
    "gemma3_text": {
        **LLAMA,
        "model.layers.0.pre_feedforward_layernorm": ("hidden",),
        "model.layers.0.post_feedforward_layernorm": ("hidden",),
    },
    "gemma4_unified_text": {
        **LLAMA,
        "model.layers.0.pre_feedforward_layernorm": ("hidden",),
        "model.layers.0.post_feedforward_layernorm": ("hidden",),
    },
    "gpt2": {
        "wte": ("vocab", "hidden"),
        "h.0.ln_1": ("hidden",),
        "h.0.attn.c_attn": ("hidden", "all three"),
        "h.0.attn.c_proj": ("hidden", "hidden"),
        "h.0.ln_2": ("hidden",),
        "h.0.mlp.c_fc": ("hidden", "inner"),
        "h.0.mlp.c_proj": ("inner", "hidden"),
    },
}
BIASED = {name for name in TENSORS["gpt2"] if name.startswith("h.0.")} | {
    f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"
}


def test_every_reader_of_weights_has_tensors_here() -> None:
    lacking = set(FAMILIES.values()) - {FAMILIES[family] for family in TENSORS}
    assert not lacking, f"add the tensors of a layer to TENSORS for {lacking}"


@st.composite
def specs(draw: st.DrawFn) -> DecoderSpec:
    family = draw(st.sampled_from(sorted(TENSORS)))
    kv_heads, dim = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    heads = kv_heads * (1 if family == "gpt2" else draw(st.integers(1, 4)))
    return DecoderSpec(
        family=family,
        layers=draw(st.integers(1, 7)),
        hidden=heads * dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        intermediate=draw(st.integers(kv_heads, 20)),
        vocab=draw(st.integers(kv_heads, 20)),
        epsilon=1e-5,
        parallel=family.startswith("cohere"),
    )


@given(spec=specs(), data=st.data())
def test_a_layout_covers_the_model_once(spec: DecoderSpec, data: st.DataObject) -> None:
    tp, pp = data.draw(st.integers(1, spec.kv_heads)), data.draw(st.integers(1, spec.layers))
    parts = [Layout(tp, pp, rank).part_of(spec) for rank in range(tp * pp)]
    of_first_stage, of_first_ranks = parts[:tp], parts[::tp]
    for name in ("heads", "kv_heads", "intermediate"):
        counts = [getattr(part, name) for part in of_first_stage]
        assert sum(counts) == getattr(spec, name)
        assert min(counts) > 0
    assert {part.queries_per_kv for part in parts} == {spec.queries_per_kv}
    assert sum(part.layers for part in of_first_ranks) == spec.layers
    for name in ("kv_heads", "intermediate", "layers"):
        counts = [getattr(part, name) for part in parts]
        assert max(counts) - min(counts) <= 1


@given(spec=specs(), over=st.integers(1, 3))
def test_more_ranks_than_kv_heads_are_refused(spec: DecoderSpec, over: int) -> None:
    tp = spec.kv_heads + over
    with pytest.raises(SettingsError, match=f"tp={tp} is over the model's {spec.kv_heads} KV heads"):
        Layout(tp).part_of(spec)


@given(spec=specs(), data=st.data())
def test_shards_read_every_number_once(
    spec: DecoderSpec, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tp = data.draw(st.integers(1, spec.kv_heads))
    folder = write(spec, tmp_path_factory.mktemp("model"))
    tensors = open_folder(folder)
    whole = open_weights(spec, tensors, Partition())
    partitions = [open_weights(spec, tensors, Partition(rank, tp)) for rank in range(tp)]
    tables = [partition.embedding() for partition in partitions]
    assert torch.equal(torch.cat([table.rows for table in tables]), whole.embedding().rows)
    assert [table.first for table in tables] == [sum(len(t.rows) for t in tables[:i]) for i in range(tp)]
    assert torch.equal(
        torch.cat([partition.vocabulary().numbers for partition in partitions]), whole.vocabulary().numbers
    )
    parts = [Layout(tp, rank=rank).part_of(replace(spec, layers=1)) for rank in range(tp)]
    check_layer(spec, whole.layer(0), [partition.layer(0) for partition in partitions], parts)
    assert read_numbers(spec, whole.layer(0)) == written_numbers(folder)


def read_numbers(spec: DecoderSpec, layer: LayerWeights) -> list[float]:
    """All numbers of the layer's products and norms as the checkpoint has them, sorted. Gemma's norms add 1 to them."""
    added = 1.0 if spec.family in ("gemma", "gemma2", "gemma3_text") else 0.0
    tensors = []
    for field in fields(layer):
        part = getattr(layer, field.name)
        if isinstance(part, Linear | torch.Tensor):
            linear = part if isinstance(part, Linear) else Linear(part)
            tensors += [linear.numbers - added if "norm" in field.name else linear.numbers]
            tensors += [] if linear.bias is None else [linear.bias]
    return sorted(number for tensor in tensors for number in tensor.flatten().tolist())


def written_numbers(folder: Path) -> list[float]:
    """All numbers that the checkpoint has for its layer, sorted."""
    tensors = [tensor for name, tensor in load_file(folder / "model.safetensors").items() if ".0." in name]
    return sorted(number for tensor in tensors for number in tensor.flatten().tolist())


def check_layer(
    spec: DecoderSpec, whole: LayerWeights, partitions: list[LayerWeights], parts: list[DecoderSpec]
) -> None:
    inner = [[part.intermediate] * (1 if spec.family in ("gpt2", "arcee") else 2) for part in parts]
    attention = [[n * spec.head_dim for n in (part.heads, part.kv_heads, part.kv_heads)] for part in parts]
    for name, sizes in (("qkv", attention), ("up", inner)):
        products, all_of_it = [getattr(partition, name) for partition in partitions], getattr(whole, name)
        assert torch.equal(joined([p.weight for p in products], sizes), all_of_it.weight)
        if all_of_it.bias is not None:
            assert torch.equal(joined([p.bias for p in products], sizes), all_of_it.bias)
    for name, inputs in (("output", [p.heads * p.head_dim for p in parts]), ("down", [p.intermediate for p in parts])):
        products, all_of_it = [getattr(partition, name) for partition in partitions], getattr(whole, name)
        assert [p.weight.shape[1] for p in products] == inputs
        assert torch.equal(torch.cat([p.weight for p in products], dim=1), all_of_it.weight)
        assert all(p.bias is None for p in products[1:])
        assert all_of_it.bias is None or torch.equal(products[0].bias, all_of_it.bias)

    if whole.sinks is not None:
        assert torch.equal(
            torch.cat([partition.sinks for partition in partitions if partition.sinks is not None]), whole.sinks
        )


def joined(parts: list[torch.Tensor], sizes: list[list[int]]) -> torch.Tensor:
    """Products stacked in each part, restacked as in the whole."""
    cut = [part.split(size) for part, size in zip(parts, sizes, strict=True)]
    return torch.cat([torch.cat(same) for same in zip(*cut, strict=True)])


def write(spec: DecoderSpec, folder: Path) -> Path:
    """A checkpoint of one layer in which all numbers differ."""
    dim = spec.head_dim
    sizes = {"vocab": spec.vocab, "hidden": spec.hidden, "inner": spec.intermediate, "all three": 3 * spec.hidden}
    sizes |= {"heads": spec.heads, "queries": spec.heads * dim, "keys": spec.kv_heads * dim, "head": dim}
    sizes |= {"fused": (spec.heads + 2 * spec.kv_heads) * dim, "both halves": 2 * spec.intermediate}
    shapes = {
        name if name.endswith("sinks") else f"{name}.weight": [sizes[n] for n in shape]
        for name, shape in TENSORS[spec.family].items()
    }
    for name in BIASED & TENSORS[spec.family].keys():
        outputs = -1 if spec.family == "gpt2" else 0
        shapes[f"{name}.bias"] = [sizes[TENSORS[spec.family][name][outputs]]]
    tensors, first = {}, 0
    for name, shape in shapes.items():
        size = int(torch.Size(shape).numel())
        tensors[name] = torch.arange(first, first + size, dtype=torch.float32).view(shape)
        first += size
    save_file(tensors, folder / "model.safetensors")
    return folder
