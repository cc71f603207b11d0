"""Families whose norms come after attention and MLP instead of before them: OLMo 2 and 3, EXAONE 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.decoder_weights import LayerWeights
from services.engine.families.llama import Llama, rotary_frequencies
from services.engine.spec import DecoderSpec

FULL, LOCAL = "full_attention", "sliding_attention"


class Olmo2(Llama):
    """Llama's layers, with norms after attention and MLP instead of before them, and norms of all queries and of all
    keys of a token."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        spec = Llama.read_spec(config)
        return spec and replace(spec, norms_all_heads=True)

    def layer(self, index: int) -> LayerWeights:
        layer = f"model.layers.{index}"
        return LayerWeights(
            attention_norm=None,
            qkv=self._qkv(layer),
            query_norm=self._read(f"{layer}.self_attn.q_norm.weight"),
            key_norm=self._read(f"{layer}.self_attn.k_norm.weight"),
            output=self._partial(f"{layer}.self_attn.o_proj", self._head_rows(self._spec.queries_per_kv)),
            mlp_norm=None,
            up=self._up(layer),
            down=self._down(layer),
            attention_post_norm=self._norm(f"{layer}.post_attention_layernorm"),
            mlp_post_norm=self._norm(f"{layer}.post_feedforward_layernorm"),
        )


class Olmo3(Olmo2):
    """OLMo 2's layers, with windows in some of them, whose rotary embeddings are not scaled."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; also None for rotary embeddings of windows that no layer has."""
        ropes = [config.rope_parameters[kind] for kind in (FULL, LOCAL)]
        if any(rope["rope_type"] in ("dynamic", "longrope") or "partial_rotary_factor" in rope for rope in ropes):
            return None
        spec = Llama.read_rotary_spec(config, FULL)
        if spec is None:
            return None
        spec = replace(spec, norms_all_heads=True)
        local, scale = rotary_frequencies(config, LOCAL)
        if LOCAL not in config.layer_types or (local, scale) == (spec.frequencies, spec.rotary_scale):
            return spec
        return replace(spec, local_frequencies=local, local_rotary_scale=scale) if spec.windows else None


class Exaone4(Olmo2):
    """OLMo 2's layers, with norms of each head. If some layers have a window, the others have no rotary embeddings."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        spec = Llama.read_spec(config)
        local = tuple(kind == "sliding_attention" for kind in config.layer_types)
        rotary = () if config.sliding_window is None else local
        return spec and replace(spec, rotary_layers=rotary)
