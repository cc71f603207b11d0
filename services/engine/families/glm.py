"""GLM-4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.decoder_weights import LayerWeights, Linear
from services.engine.families.llama import Llama
from services.engine.families.phi3 import LONG_ROPE
from services.engine.spec import DecoderSpec


class Glm(Llama):
    """Llama's layers. Rotary embeddings are partial, and their pairs are neighbours. Checkpoints keep gates and the
    rest of the MLP as one tensor."""

    interleaved = True

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        return None if config.rope_parameters["rope_type"] == LONG_ROPE else Llama.read_rotary_spec(config)

    def _up(self, layer: str) -> Linear:
        return self._stacked([f"{layer}.mlp.gate_up_proj"] * 2, self._halves(self._spec.intermediate))


class Glm4(Glm):
    """GLM-4-0414: GLM-4's layers, with norms after attention and MLP, too."""

    def layer(self, index: int) -> LayerWeights:
        layer = f"model.layers.{index}"
        return replace(
            super().layer(index),
            attention_post_norm=self._norm(f"{layer}.post_self_attn_layernorm"),
            mlp_post_norm=self._norm(f"{layer}.post_mlp_layernorm"),
        )
