"""The oracle: greedy float32 tokens equal those of stock `generate()`, one request at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver
from family_check import STOCK, check_family, check_greedy, make_jobs
from tiny_models import FAMILIES as TINY
from tiny_models import make_tiny_model
from transformers import AutoConfig

from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.families.registry import FAMILIES as FAST
from services.engine.families.registry import spec_of
from services.engine.settings import EngineSettings

FAMILIES = [*FAST, "opt", "gpt_neox", "stablelm"]
ON_STOCK = ["llama", "gpt2", "gemma3_text", "cohere2", "gpt_oss", "opt", "gpt_neox", "stablelm"]  # all: `make families`


@pytest.mark.parametrize(("family", "fast_path"), [(f, False) for f in ON_STOCK] + [(f, True) for f in FAST])
def test_greedy_tokens_equal_generate(family: str, fast_path: bool, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family)
    engine = check_family(folder, replace(STOCK, fast_path=fast_path))
    assert engine.figures.numerics.endswith("native") == fast_path


KINDS = ("full_attention", "sliding_attention")  # of layers
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one table for both ends": ("llama", {"tie_word_embeddings": True}),
    "a bias in attention": ("llama", {"attention_bias": True}),
    "another activation": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "as many KV heads as heads": ("llama", {"num_key_value_heads": 4}),
    "heads wider than the model": ("qwen3", {"head_dim": 32}),
    "interleaved rotary embeddings over the whole head": (
        "glm",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ),
    "rotary embeddings that are not scaled, norms after them": (
        "hunyuan_v1_dense",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "rotary embeddings in no layer": ("cohere2", {"layer_types": ["full_attention"] * 2}),
    "biases beside an MLP": ("cohere", {"attention_bias": True}),
    "windows in all layers": ("mistral", {"sliding_window": 8}),
    "windows in some layers": ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "windows and layers without rotary embeddings": (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [0, 1]},
    ),
    "rotary embeddings in all layers, which have no windows": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "the same rotary embeddings with and without windows": (
        "olmo3",
        {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in KINDS}},
    ),
    "windows and fused products": ("phi3", {"sliding_window": 5}),
    "a window longer than requests": ("phi3", {"sliding_window": 300}),
    "a bias in attention, factors": ("granite", {"attention_bias": True}),
    "a shared expert, and a layer with an MLP": ("qwen2_moe", {"mlp_only_layers": [0], "qkv_bias": False}),
    "shares that are not normalised, experts in all layers": (
        "glm4_moe",
        {"norm_topk_prob": False, "first_k_dense_replace": 0},
    ),
    "layers with an MLP beside layers of experts": ("qwen3_moe", {"mlp_only_layers": [0]}),
    "experts without a bias in attention": ("gpt_oss", {"attention_bias": False}),
    "experts beyond the limit of their gates": ("gpt_oss", {"swiglu_limit": 0.2, "swiglu_alpha": 0.7}),
    "shares of the chosen experts alone": ("qwen3_moe", {"norm_topk_prob": True}),
    "shared keys, MLPs of one size": ("gemma4_text", {"use_double_wide_mlp": False}),
    "no inputs of layers, keys as values": (
        "gemma4_text",
        {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True},
    ),
    "inputs of layers that are no whole vectors": ("gemma4_text", {"hidden_size_per_layer_input": 20}),
    "no shared keys": ("gemma4_text", {"num_kv_shared_layers": 0}),
    "shared keys in a dense variant": (
        "gemma4_unified_text",
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "a bias in attention, equal heads": ("gemma4_unified_text", {"attention_bias": True, "global_head_dim": 16}),
    "no windows": ("gemma4_unified_text", {"layer_types": ["full_attention"] * 2}),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_fast_families(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    if "swiglu_alpha" in changes and not hasattr(AutoConfig.for_model(family), "swiglu_alpha"):
        pytest.skip("these transformers compute with a constant")
    folder = make_tiny_model(tmp_path, family, with_tokenizer=False, **changes)
    engine = Engine.load(folder, EngineSettings("cpu", "float32", block_size=4, kv_blocks=200, threads=1))
    assert engine.figures.numerics.endswith("native")
    jobs = Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))
    check_greedy(folder, jobs)


@pytest.mark.parametrize(("original", "longest", "chosen"), [(4, 256, "long"), (64, 64, "short")])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_longrope_is_chosen_by_the_longest_request(
    original: int, longest: int, chosen: str, share: float, tmp_path: Path
) -> None:
    """Rotary embeddings over the whole head, and over half of it."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": share,
        "original_max_position_embeddings": original,
        "short_factor": [1.0 + i / 10 for i in range(int(8 * share))],
        "long_factor": [1.0 + i * i for i in range(int(8 * share))],
    }
    config = {"rope_parameters": rope, "original_max_position_embeddings": original}
    folder = make_tiny_model(tmp_path, "phi3", with_tokenizer=False, **config)
    engine = check_family(folder, replace(STOCK, fast_path=True, max_model_len=longest), shortest=5)
    assert engine.figures.numerics.endswith(f"native longrope-{chosen}")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"mlp_bias": True}),
        ("granite", {"mlp_bias": True}),
        ("granitemoehybrid", {"num_local_experts": 4}),
        ("granitemoehybrid", {"position_embedding_type": None}),
        ("olmoe", {"clip_qkv": 1.0}),
        ("gpt_oss", {"swiglu_limit": 0.0}),
        ("olmo3", {"sliding_window": 256}),
        ("gemma", {"use_bidirectional_attention": True}),
        ("ernie4_5", {"use_bias": True}),
        ("arcee", {"mlp_bias": True}),
        (
            "hunyuan_v1_dense",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        ),
        ("cohere", {"use_qk_norm": True}),
        ("glm4_moe", {"n_group": 2, "topk_group": 1}),
        ("ernie4_5_moe", {"use_bias": True}),
        ("gemma4_text", {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}),
        ("gemma4_text", {"use_bidirectional_attention": "all"}),
        ("gemma4_text", {"hidden_activation": "silu"}),
        ("gemma4_text", {"vocab_size_per_layer_input": 100}),
        ("gemma4_unified_text", {"sliding_window": 300}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("opt", {}),
    ],
)
def test_what_the_fast_path_leaves_to_transformers(family: str, changes: dict[str, Any]) -> None:
    fields = {"vocab_size": 320, **TINY[family]}
    assert (spec_of(AutoConfig.for_model(family, **fields)) is None) == (family == "opt")
    assert spec_of(AutoConfig.for_model(family, **{**fields, **changes})) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate_on_cuda(family: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family)
    engine = Engine.load(folder, EngineSettings(device="cuda", dtype="float32", block_size=4, kv_blocks=200))
    spec = spec_of(load_config(folder))
    assert (" triton " in engine.figures.numerics) == bool(spec and not spec.lacks_on_cuda)
    jobs = Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))
    check_greedy(folder, jobs)
