"""Tiny random models of the families that are served, by transformers' `model_type`.

A tiny model has the fields of SMALL that its config knows, and those of its family here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

WINDOW = 8  # tokens, shorter than the prompts of tests
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "max_position_embeddings": 256,
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
    "final_logit_softcapping": 300.0,
}


# a first layer with a window or chunks, a second one without
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
# four layers, of which the last two read the keys and values of the first two
SHARING = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 200,
    "hidden_size_per_layer_input": 16,
    "head_dim": 16,
}
LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
FACTORS = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0]
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": FACTORS,
    "original_max_position_embeddings": 4,
}

LATENT_EXPERTS = {**LATENT, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LONGEST_SHORT = 4  # tokens of a prompt that `longrope` still computes with its short factors
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0],
    "original_max_position_embeddings": LONGEST_SHORT,
}

# a first layer with a state, a second one with attention
RECURRENT = {"layer_types": ["linear_attention", "full_attention"]}
GATED_DELTA = {
    **RECURRENT,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "shared_expert_intermediate_size": 32,
}
CONVOLVED = {"layer_types": ["conv", "full_attention"]}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}

# families that need nothing more
PLAIN = """
afmoe apertus arcee aria_text beam biogpt bitnet cohere cohere2_moe ctrl cwm ernie4_5 ernie4_5_moe exaone_moe
flex_olmo flint gemma glm glm4 glm4_moe gpt-sw3 gpt2 gpt_bigcode gpt_neox granite granite_swa granitemoe
granitemoe_swa granitemoeshared helium hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna
llama mellum mimo_v2_flash minimax_m2 ministral3 mistral mixtral modernbert-decoder nemotron olmo olmo2 olmoe
opt persimmon phi qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
"""
# the fields that SMALL lacks, or has otherwise
TESTED: dict[str, dict[str, Any]] = {
    **{family: {} for family in PLAIN.split()},
    **dict.fromkeys(("gemma2", "gemma3_text", "gpt_oss", "olmo3", "cohere2", "exaone4", "ministral"), MIXED),
    **dict.fromkeys(("deepseek_v3", "axk1", "glm4_moe_lite", "youtu"), LATENT_EXPERTS),
    "deepseek_v2": {**LATENT_EXPERTS, "topk_method": "greedy", "q_lora_rank": None},
    "minicpm3": {**LATENT, "dim_model_base": 16},
    "longcat_flash": {
        **LATENT,
        "num_layers": 1,  # of two attention layers each
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "zero_expert_num": 2,
    },
    "dots1": {"n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    "gemma3n_text": {**SHARING, "laurel_rank": 8},
    "gemma4_text": {**SHARING, "global_head_dim": 32},
    "gemma4_unified_text": {**MIXED, "head_dim": 16, "global_head_dim": 32},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"],
        "no_rope_layers": [1, 0],
        "floor_scale": 4,
        "intermediate_size_mlp": 128,
        "moe_layers": [1],
    },
    "phi3": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": LONGEST_SHORT},
    "phimoe": {"rope_parameters": {**LONG_ROPE, "short_mscale": 1.1, "long_mscale": 1.2}},
    "cohere_compass_text": {
        **MIXED,
        "rope_parameters": {"full_attention": PLAIN_ROPE, "sliding_attention": PLAIN_ROPE},
    },
    "hunyuan_v1_dense": {"rope_parameters": PLAIN_ROPE},
    "hunyuan_v1_moe": {"rope_parameters": PLAIN_ROPE},
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), GATED_DELTA),
    "qwen3_5_text": {name: value for name, value in GATED_DELTA.items() if "expert" not in name},
    "olmo_hybrid": RECURRENT,
    "kimi_linear": {**LATENT, **RECURRENT, "linear_head_dim": 16, "linear_num_heads": 4, "q_lora_rank": None},
    "bailing_hybrid": {**LATENT, **RECURRENT, "num_expert_group": 1, "topk_group": 1},
    **dict.fromkeys(("lfm2", "lfm3"), CONVOLVED),
    "lfm2_moe": {**CONVOLVED, "num_dense_layers": 1},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128},
    "granitemoehybrid": {**MAMBA, **RECURRENT, "shared_intermediate_size": 64},
    "nemotron_h": {
        "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
        "num_hidden_layers": 4,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
    },
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8, "mamba_dt_rank": 8},
}


def small_config(family: str, vocab_size: int = 200, **changes: Any) -> Any:
    """The transformers config of a tiny model of `family`."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(family)
    known = {*config.to_dict(), *config.attribute_map}
    fields = {name: value for name, value in SMALL.items() if name in known}
    ids = {"vocab_size": vocab_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": vocab_size - 1}
    own = TESTED.get(family, {})
    return AutoConfig.for_model(family, **{**ids, "initializer_range": 0.2, **fields, **own, **changes})


def make_tiny_family(folder: Path, family: str, **changes: Any) -> Path:
    """Save a random model of `family` with a vocabulary of 200, without a tokenizer. Its vectors are drawn too, as in
    `make_tiny_model`."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(small_config(family, **changes), dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1 or name.endswith("bias"):
                    parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder
