"""Gemma 1 and 2, and the text model of Gemma 3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from services.engine.families.decoder_weights import LayerWeights
from services.engine.families.llama import Llama, rotary_frequencies, sizes_of, windows_of
from services.engine.spec import Activation, DecoderSpec


class Gemma1(Llama):
    """Llama's layers. Embeddings are scaled, and norms multiply by one plus their weight."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; also None for attention to later tokens."""
        spec = None if config.use_bidirectional_attention else Llama.read_spec(config)
        scale = config.hidden_size**0.5
        return spec and replace(spec, embedding_scale=scale, rounds_embedding_scale=True)

    def _norm_weight(self, name: str) -> torch.Tensor:
        return super()._norm_weight(name).to(torch.float32) + 1.0


class Gemma(Gemma1):
    """Gemma 1's layers with norms before and after attention and MLP, and windows in some layers. Gemma 2 has soft
    caps; Gemma 3 has head norms, and other rotary embeddings in layers with a window."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """None for attention to later tokens, another activation than GELU in its tanh form, rotary embeddings that are
        partial or depend on the length, and those of windows that no layer has."""
        by_type = config.rope_parameters.keys() >= {"full_attention", "sliding_attention"}
        types = ("full_attention", "sliding_attention") if by_type else (None,)
        ropes = [config.rope_parameters[kind] if kind else config.rope_parameters for kind in types]
        unknown = any(r["rope_type"] in ("dynamic", "longrope") or "partial_rotary_factor" in r for r in ropes)
        if unknown or config.use_bidirectional_attention or config.hidden_activation != "gelu_pytorch_tanh":
            return None
        rotary = [rotary_frequencies(config, kind) for kind in types]
        (frequencies, scale), (local, local_scale) = rotary[0], rotary[-1]
        windows = windows_of(config)
        other = rotary[0] != rotary[-1] and "sliding_attention" in config.layer_types
        if other and not windows:
            return None
        return replace(
            sizes_of(config),
            frequencies=frequencies,
            rotary_scale=scale,
            activation=Activation.GELU,
            windows=windows,
            local_frequencies=local if other else (),
            local_rotary_scale=local_scale if other else 1.0,
            # transformers' Gemma 3 does not read its field of this name
            soft_cap=(config.attn_logit_softcapping or 0.0) if config.model_type == "gemma2" else 0.0,
            logits_soft_cap=config.final_logit_softcapping or 0.0,
            embedding_scale=config.hidden_size**0.5,
            rounds_embedding_scale=True,
            attention_scale=config.query_pre_attn_scalar**-0.5,
        )

    def layer(self, index: int) -> LayerWeights:
        layer = f"model.layers.{index}"
        return replace(
            super().layer(index),
            attention_post_norm=self._norm(f"{layer}.post_attention_layernorm"),
            mlp_norm=self._norm(f"{layer}.pre_feedforward_layernorm"),
            mlp_post_norm=self._norm(f"{layer}.post_feedforward_layernorm"),
        )
