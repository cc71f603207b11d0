"""Families of models that the lean path runs, by their configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.engine.families.rotary import frequencies
from services.engine.families.spec import DecoderSpec


def spec_of(config: Any) -> DecoderSpec | None:
    """Of a text model's config; None for a family, or a variant of one, without a lean path."""
    read = _FAMILIES.get(config.model_type)
    quantized = getattr(config, "quantization_config", None)  # its tensors are codes, not numbers
    return read(config) if read and not quantized else None


def _llama(config: Any) -> DecoderSpec | None:
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    partial = "partial_rotary_factor" in config.rope_parameters
    if config.hidden_act != "silu" or windowed or partial or getattr(config, "mlp_bias", False):
        return None
    turns, scale = frequencies(config)
    return DecoderSpec(
        family="llama",
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        epsilon=config.rms_norm_eps,
        frequencies=turns,
        rotary_scale=scale,
    )


def _gpt2(config: Any) -> DecoderSpec | None:
    if (
        config.activation_function != "gelu_new"
        or config.scale_attn_by_inverse_layer_idx
        or not config.scale_attn_weights
    ):
        return None
    return DecoderSpec(
        family="gpt2",
        layers=config.n_layer,
        hidden=config.n_embd,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        intermediate=config.n_inner or 4 * config.n_embd,
        vocab=config.vocab_size,
        epsilon=config.layer_norm_epsilon,
        layer_norm=True,
        gated=False,
    )


_FAMILIES: dict[str, Callable[[Any], DecoderSpec | None]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "gpt2": _gpt2,
}
