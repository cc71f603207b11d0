"""Granite: Llama's layers, with factors of embeddings, attention scores, changes of x and logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.decoder_weights import Linear
from services.engine.families.llama import Llama
from services.engine.spec import DecoderSpec


class Granite(Llama):
    """Dense Granite."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama.

        Here x is the model's x divided by the residual multiplier r, so changes are added as they are. Norms of x do
        not depend on its scale if epsilon is divided by r^2.
        """
        spec = Llama.read_spec(config)
        residual = config.residual_multiplier
        if spec is None or not residual > 0:
            return None
        return replace(
            spec,
            epsilon=spec.epsilon / residual**2,
            embedding_scale=config.embedding_multiplier / residual,
            attention_scale=config.attention_multiplier,
            logits_scale=1.0 / config.logits_scaling,
        )


class GraniteHybrid(Granite):
    """The dense variants of Granite 4.0, whose checkpoints keep gates and the rest of the MLP as one tensor."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; also None for state space layers, experts, and attention without rotary embeddings."""
        kinds = set(config.layer_types)
        if kinds != {"full_attention"} or config.num_local_experts or config.position_embedding_type != "rope":
            return None
        spec = Granite.read_spec(config)
        return spec and replace(spec, intermediate=config.shared_intermediate_size)

    def _up(self, layer: str) -> Linear:
        return self._stacked([f"{layer}.shared_mlp.input_linear"] * 2, self._halves(self._spec.intermediate))

    def _down(self, layer: str) -> Linear:
        return self._partial(f"{layer}.shared_mlp.output_linear", self._partition.range_of(self._spec.intermediate))
