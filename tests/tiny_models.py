"""Tiny random models of real families, with a tokenizer, made on the fly: `make_tiny_model(folder, "qwen3")`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from load.random_model import save_tokenizer

_WIDE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
_GROUPED = {**_WIDE, "intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
# Tied to the embedding, whose scale is large, the output would repeat the input's token.
_GEMMA = {
    **_GROUPED,
    **_WINDOWS,
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": False,
}
_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_CORRECTED = {
    **_GROUPED,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_COHERE = {**_GROUPED, "logit_scale": 0.6, "tie_word_embeddings": False}
_ROUTED = {**_GROUPED, "num_experts": 8, "num_experts_per_tok": 2}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 150000.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
# a layer with a window, one without and with other heads, and one of each that attends to the keys of these
_GEMMA4 = {
    **_GROUPED,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "global_head_dim": 32,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": 320,
    "hidden_size_per_layer_input": 16,
    "final_logit_softcapping": 20.0,
    "tie_word_embeddings": False,
}
# the dense variants: values are keys in layers without a window
_GEMMA4_UNIFIED = {
    **_GROUPED,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
    "num_key_value_heads": 4,
    "global_head_dim": 32,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "tie_word_embeddings": False,
}
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
_FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.6,
    "logits_scaling": 0.7,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "qwen2": {**_GROUPED, "use_sliding_window": False},
    "qwen3": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": None},
    "seed_oss": {**_GROUPED, "attention_out_bias": True},
    "ernie4_5": {**_GROUPED, "tie_word_embeddings": False},
    "helium": _GROUPED,
    "glm": _GROUPED,
    "glm4": {**_GROUPED, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25}},
    "arcee": _GROUPED,
    "hunyuan_v1_dense": {
        **_GROUPED,
        "rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0, "rope_theta": 1e4},
    },
    "cohere": _COHERE,
    "cohere2": {**_COHERE, **_WINDOWS},
    "granite": {**_GROUPED, **_FACTORS},
    "granitemoehybrid": {
        **_GROUPED,
        **_FACTORS,
        "shared_intermediate_size": 128,
        "layer_types": ["full_attention"] * 2,
        "position_embedding_type": "rope",
        "mamba_n_heads": 8,
        "num_local_experts": 0,
    },
    "olmo2": _GROUPED,
    "olmo3": {**_GROUPED, **_WINDOWS, "rope_parameters": {"full_attention": _YARN, "sliding_attention": _ROPE}},
    "exaone4": {**_GROUPED, **_WINDOWS},
    "phi3": {**_GROUPED, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
    "smollm3": {**_GROUPED, "no_rope_layers": [1, 0]},
    "qwen2_moe": {**_ROUTED, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 150},
    "glm4_moe": {
        **_CORRECTED,
        "use_qk_norm": True,
        "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
        "routed_scaling_factor": 1.5,
    },
    "dots1": {**_CORRECTED, "n_group": 1, "topk_group": 1, "norm_topk_prob": True},
    "ernie4_5_moe": {
        **_GROUPED,
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_intermediate_size": 40,
        "tie_word_embeddings": False,
    },
    "qwen3_moe": {**_ROUTED, "moe_intermediate_size": 40},
    "olmoe": _ROUTED,
    "mixtral": _ROUTED,
    "gpt_oss": {**_ROUTED, "sliding_window": 8, "intermediate_size": 44, "rope_parameters": _YARN},
    "gpt2": _GPT,
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0},
    "gemma3_text": {**_GEMMA, "rope_parameters": _ROPES},
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4_UNIFIED,
    "opt": {**_WIDE, "word_embed_proj_dim": 64, "ffn_dim": 128},
    "gpt_neox": {**_WIDE, "intermediate_size": 128},
    "gemma": {**_GROUPED, "tie_word_embeddings": False},  # see _GEMMA
    "stablelm": _GROUPED,
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "seq_length": 256},
    "falcon": _WIDE,
    "gptj": {**_GPT, "rotary_dim": 8},
    "bert": {**_WIDE, "intermediate_size": 128},
    "lfm2": _GROUPED,
}


def make_tiny_model(
    folder: Path,
    family: str = "llama",
    vocab_size: int = 320,
    with_tokenizer: bool = True,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Save a random model with safetensors in `folder`: 2 layers, hidden size 64, 256 positions, EOS `</s>`.

    `config` overrides fields of its transformers config. The weights are drawn wide, so that texts vary and the two
    likeliest tokens are seldom close. Biases and norms are drawn too: transformers starts them at 0 and 1, where a
    product without its bias, or a norm without its weight, computes the same. The tokenizer is byte-level BPE with
    ChatML as its chat template; it needs a vocabulary of at least 259.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    assert family in FAMILIES, f"no tiny {family}: add its config to FAMILIES in tests/tiny_models.py"
    eos = vocab_size - 1
    ids = {"vocab_size": vocab_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": eos}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoConfig.for_model(family, **{**ids, "initializer_range": 0.2, **FAMILIES[family], **config})
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1 or name.endswith("bias"):
                    parameter += 0.2 * torch.randn_like(parameter)
            for name, buffer in model.named_buffers():
                if name.endswith("bias"):
                    buffer += 0.2 * torch.randn_like(buffer)
                if name.endswith("layer_scalar"):
                    buffer.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    if with_tokenizer:
        save_tokenizer(folder, vocab_size)
    return folder
