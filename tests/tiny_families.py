"""Every causal language model of transformers, by its `model_type`: tested, refused, or untested.

A tiny model of a family has the fields of SMALL that its config knows, and those of its row here.
"""

from __future__ import annotations

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
ROUTED = {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}
FACTORS = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0]
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": FACTORS,
    "original_max_position_embeddings": 4,
}

# by `model_type`; the fields that SMALL lacks or has otherwise
TESTED: dict[str, dict[str, Any]] = {
    "gemma2": MIXED,
    "gemma3_text": MIXED,
    "gemma3n_text": {**SHARING, "laurel_rank": 8},
    "gemma4_text": {**SHARING, "global_head_dim": 32},
    "gemma4_unified_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "head_dim": 16,
        "global_head_dim": 32,
    },
    "gpt_oss": MIXED,
    "olmo3": MIXED,
    "cohere2": MIXED,
    "exaone4": MIXED,
    "ministral": MIXED,
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"],
        "no_rope_layers": [1, 0],
        "floor_scale": 4,
        "intermediate_size_mlp": 128,
        "moe_layers": [1],
    },
    "phi3": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 4},
    "phimoe": {"rope_parameters": {**LONG_ROPE, "short_mscale": 1.1, "long_mscale": 1.2}},
    "deepseek_v2": {**LATENT, **ROUTED, "topk_method": "greedy", "q_lora_rank": None},
    "deepseek_v3": {**LATENT, **ROUTED},
    "axk1": {**LATENT, **ROUTED},
    "glm4_moe_lite": {**LATENT, **ROUTED},
    "dots1": {**ROUTED},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "hunyuan_v1_moe": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "granitemoehybrid": {"layer_types": ["full_attention"] * 2, "mamba_n_heads": 8, "num_local_experts": 0},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
}


def small_config(family: str, vocab_size: int = 200, **changes: Any) -> Any:
    """The transformers config of a tiny model of `family`."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(family)
    fields = {name: value for name, value in SMALL.items() if name in known.to_dict()}
    ids = {"vocab_size": vocab_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": vocab_size - 1}
    return AutoConfig.for_model(
        family, **{**ids, "initializer_range": 0.2, **fields, **TESTED.get(family, {}), **changes}
    )
