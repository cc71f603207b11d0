"""Tiny models that read pictures too, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_models import FAMILIES
from transformers import AutoConfig, AutoModelForImageTextToText

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
PICTURES = {**SIZES, "image_size": 28, "patch_size": 14}
QWEN = {"hidden_size": 64, "embed_dim": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}

# by the type of the whole: the family and the type of its text part, what its config says besides, and that of pictures
WHOLES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llava": ("llama", "llama", {}, PICTURES | {"model_type": "clip_vision_model"}),
    "llava_next": ("mistral", "mistral", {}, PICTURES | {"model_type": "clip_vision_model"}),
    "llava_onevision": ("qwen2", "qwen2", {}, PICTURES | {"model_type": "siglip_vision_model"}),
    "mistral3": ("mistral", "mistral", {}, PICTURES | {"model_type": "pixtral"}),
    "internvl": ("qwen2", "qwen2", {}, PICTURES),
    "aya_vision": ("cohere2", "cohere2", {}, PICTURES | {"model_type": "siglip_vision_model"}),
    "idefics3": ("llama", "llama", {}, PICTURES),
    "gemma3": ("gemma3_text", "gemma3_text", {}, PICTURES),
    "gemma4": ("gemma4_text", "gemma4_text", {}, SIZES),
    "gemma4_unified": (
        "gemma4_unified_text",
        "gemma4_unified_text",
        {},
        {"mm_embed_dim": 64, "patch_size": 2, "mm_posemb_size": 8},
    ),
    "qwen2_vl": ("qwen2", "qwen2_vl_text", AXES, QWEN),
    "qwen2_5_vl": ("qwen2", "qwen2_5_vl_text", AXES, QWEN | {"hidden_size": 32}),
    "qwen3_vl": ("qwen3", "qwen3_vl_text", AXES, QWEN | {"hidden_size": 32, "deepstack_visual_indexes": [0]}),
}


def make_whole(folder: Path, kind: str, tied: bool = False) -> Path:
    family, text, more, pictures = WHOLES[kind]
    fields = {**FAMILIES[family], **more, "vocab_size": 201, "initializer_range": 0.2, "model_type": text}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, text_config=fields, vision_config=pictures, tie_word_embeddings=tied)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    return folder
