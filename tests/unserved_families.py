"""The causal language models of transformers that are not served, by `model_type`: refused ones, with a tiny config and
what the refusal names; and untested ones, with the reason.
"""

from __future__ import annotations

from typing import Any

REPLACED = "its attention cannot be replaced"
SELECTED = "layers of type indexed_attention are not served"
BIDIRECTIONAL = "an attention mask of its own is not served"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **dict.fromkeys(("inkling_text", "inkling2_text"), ({}, "a position bias is not served")),
    "minimax": ({}, "its layers with a state are not served"),
    "zaya": ({"num_experts_per_tok": 1}, "its layers with a state are not served"),
    "zamba2": (
        {
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
            "num_hidden_layers": 4,
            "mamba_d_state": 16,
            "n_mamba_heads": 8,
        },
        REPLACED,
    ),
    **dict.fromkeys(("mamba", "falcon_mamba"), ({}, "says none of: max_position_embeddings")),
    "mamba2": ({"num_heads": 8, "head_dim": 16, "state_size": 16}, "says none of: max_position_embeddings"),
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), ({}, SELECTED)),
    "deepseek_v4": ({}, "layers of type heavily_compressed_attention are not served"),
    **dict.fromkeys(("big_bird", "gpt_neox_japanese", "megatron-bert", "openai-gpt"), ({}, REPLACED)),
    **dict.fromkeys(("bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie"), ({}, BIDIRECTIONAL)),
    "bloom": ({"n_layer": 2, "n_head": 4, "seq_length": 256}, REPLACED),
    "mpt": ({"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}, REPLACED),
    "falcon": ({}, REPLACED),
    "codegen": ({"rotary_dim": 8}, REPLACED),
    "gptj": ({"rotary_dim": 8}, REPLACED),
    "gpt_neo": ({"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}, REPLACED),
    "diffllama": ({}, REPLACED),
    "hrm_text": ({}, REPLACED),
    "doge": ({}, "cannot be run on a flat batch"),
    "moshi": ({}, "a window that its masks lack is not served"),
}
DECODERS = "the decoder of a model with an encoder, which has its positions from the length of its cache"
ENCODERS = "an encoder, which is seldom used as a decoder"
MULTIMODAL = "a model with images or sound, of which no text model alone can be made small here"
PARTS = "a part of another model, which does not run alone"
STATES = "a recurrent or hybrid model, whose config has no length or no small form"
UNTESTED: dict[str, str] = {
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"),
        DECODERS,
    ),
    **dict.fromkeys(("musicgen", "musicgen_melody", "prophetnet", "trocr", "whisper"), DECODERS),
    **dict.fromkeys(("reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"), ENCODERS),
    **dict.fromkeys(("xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod"), ENCODERS),
    **dict.fromkeys(("emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git", "got_ocr2"), MULTIMODAL),
    **dict.fromkeys(("llama4", "mllama", "moss_transcribe_diarize", "phi4_multimodal", "dots3_note"), MULTIMODAL),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen4_exp"), MULTIMODAL),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), PARTS),
    **dict.fromkeys(("qwen4_exp_text", "recurrent_gemma", "rwkv", "xlstm", "zamba"), STATES),
    **dict.fromkeys(("blt", "cpmant", "dbrx", "dots3_note_text", "nanochat", "xglm"), "no tiny config was made"),
    "minimax_m3_vl_text": "its sparse layers have no tiny config",
}
