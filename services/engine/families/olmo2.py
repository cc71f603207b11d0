"""OLMo 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama
from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import LayerWeights


class Olmo2(Llama):
    """Llama's layers, with norms after attention and MLP instead of before them, and norms of all queries and of all
    keys of a token."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        spec = Llama.read_spec(config)
        return spec and replace(spec, family="olmo2", pre_norms=False, post_norms=True, norms_all_heads=True)

    def layer(self, index: int) -> LayerWeights:
        """See DecoderWeights."""
        layer = f"model.layers.{index}"
        return LayerWeights(
            attention_norm=None,
            qkv=self._qkv(layer),
            query_norm=self._read(f"{layer}.self_attn.q_norm.weight"),
            key_norm=self._read(f"{layer}.self_attn.k_norm.weight"),
            output=self._partial(f"{layer}.self_attn.o_proj", self._head_rows(self._spec.group)),
            mlp_norm=None,
            up=self._up(layer),
            down=self._down(layer),
            attention_post_norm=self._norm(f"{layer}.post_attention_layernorm"),
            mlp_post_norm=self._norm(f"{layer}.post_feedforward_layernorm"),
        )
