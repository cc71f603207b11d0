"""Llama, and the families with the same layers: Mistral, Qwen2, Qwen3, Seed-OSS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch

from services.engine.families.decoder_weights import DecoderWeights, LayerWeights, Linear
from services.engine.spec import Activation, DecoderSpec
from services.models.info import extended

# by transformers' names
ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU,
    "relu2": Activation.RELU_SQUARED,
}


class Llama(DecoderWeights):
    """RMS norms, rotary embeddings, a gated MLP. Biases of queries, keys and values (Qwen2) and head norms (Qwen3) are
    optional tensors."""

    head_norms: ClassVar[tuple[str, str]] = ("q_norm", "k_norm")  # of queries and keys

    @property
    def embedding_name(self) -> str:
        return "model.embed_tokens.weight"

    @property
    def last_norm_name(self) -> str:
        return "model.norm"

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See DecoderWeights. None for rotary embeddings that are partial or depend on the length, for an activation
        that is not one of ACTIVATIONS, and for biases in the MLP."""
        rope = config.rope_parameters
        partial, by_length = "partial_rotary_factor" in rope, rope["rope_type"] == "longrope"
        return None if partial or by_length else Llama.read_rotary_spec(config)

    @staticmethod
    def read_rotary_spec(config: Any, layer_type: str | None = None) -> DecoderSpec | None:
        """Llama's spec with any rotary embeddings but `dynamic` ones: those of layers of `layer_type`, if layers have
        several. None for an activation that is not one of ACTIVATIONS, and for biases in the MLP."""
        rope = (config.rope_parameters[layer_type] if layer_type else config.rope_parameters)["rope_type"]
        activation = ACTIVATIONS.get(config.hidden_act)
        if activation is None or rope == "dynamic" or getattr(config, "mlp_bias", False):
            return None
        frequencies, scale = rotary_frequencies(config, layer_type)
        return replace(
            sizes_of(config),
            frequencies=frequencies,
            rotary_scale=scale,
            activation=activation,
            windows=windows_of(config),
        )

    def layer(self, index: int) -> LayerWeights:
        layer = f"model.layers.{index}"
        return LayerWeights(
            attention_norm=self._norm(f"{layer}.input_layernorm"),
            qkv=self._qkv(layer),
            query_norm=self._head_norm(f"{layer}.self_attn.{self.head_norms[0]}"),
            key_norm=self._head_norm(f"{layer}.self_attn.{self.head_norms[1]}"),
            output=self._partial(f"{layer}.self_attn.o_proj", self._head_rows(self._spec.queries_per_kv)),
            mlp_norm=None if self._spec.parallel else self._norm(f"{layer}.post_attention_layernorm"),
            up=self._up(layer),
            down=self._down(layer),
        )

    def _qkv(self, layer: str) -> Linear:
        queries, keys = self._head_rows(self._spec.queries_per_kv), self._head_rows()
        product = self._stacked([f"{layer}.self_attn.{name}_proj" for name in "qkv"], [queries, keys, keys])
        return self._paired(product, queries[1] - queries[0] + keys[1] - keys[0])

    def _up(self, layer: str) -> Linear | None:
        inner = self._partition.range_of(self._spec.intermediate)
        return self._stacked([f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"], [inner, inner])

    def _down(self, layer: str) -> Linear | None:
        return self._partial(f"{layer}.mlp.down_proj", self._partition.range_of(self._spec.intermediate))


def sizes_of(config: Any) -> DecoderSpec:
    """The spec of what configs of most families say by the same names."""
    heads = config.num_attention_heads
    return DecoderSpec(
        family=config.model_type,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", heads),
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        epsilon=config.rms_norm_eps if hasattr(config, "rms_norm_eps") else config.layer_norm_eps,
    )


def windows_of(config: Any) -> tuple[int, ...]:
    """`windows` of DecoderSpec, from transformers' config."""
    size = getattr(config, "sliding_window", None) or 0
    if size and size >= extended(config.max_position_embeddings, config.rope_parameters):
        return ()  # longer than any request
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    windows = tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
    return windows if any(windows) else ()


def rotary_frequencies(config: Any, layer_type: str | None = None) -> tuple[tuple[float, ...], float]:
    """`frequencies` and `rotary_scale` of DecoderSpec, from transformers' config; `layer_type`: of these layers, if
    each type has its own."""
    rope = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    kind = rope["rope_type"]
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        of_type = {"layer_type": layer_type} if layer_type else {}
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, **of_type)
        return tuple(frequencies.tolist()), scale
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim = int(dim * rope.get("partial_rotary_factor", 1.0))
    shares = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return tuple((1.0 / (rope["rope_theta"] ** shares)).tolist()), 1.0
