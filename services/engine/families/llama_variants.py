"""Families with Llama's layers but for a detail or two: SmolLM3, ERNIE 4.5, Helium, Arcee, dense Hunyuan, Command R."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from services.engine.families.decoder_weights import Linear
from services.engine.families.llama import Llama
from services.engine.spec import DecoderSpec


class SmolLm3(Llama):
    """Some layers have no rotary embeddings."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        spec = Llama.read_spec(config)
        rotary = tuple(bool(kept) for kept in config.no_rope_layers[: config.num_hidden_layers])
        return spec and replace(spec, rotary_layers=rotary)


class Interleaved(Llama):
    """ERNIE 4.5 and Helium: neighbours are the pairs of rotary embeddings."""

    interleaved = True

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        return None if getattr(config, "use_bias", False) else Llama.read_spec(config)


class Arcee(Llama):
    """MLPs have no gates."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        spec = Llama.read_spec(config)
        return spec and replace(spec, gated=False)

    def _up(self, layer: str) -> Linear:
        return self._stacked([f"{layer}.mlp.up_proj"], [self._partition.range_of(self._spec.intermediate)])


class Hunyuan(Llama):
    """Norms of queries and keys come after rotary embeddings. The frequencies of these are those of a larger base, if
    the config has a factor `alpha`; it calls such embeddings `dynamic`, but they are not."""

    head_norms = ("query_layernorm", "key_layernorm")

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        rope = config.rope_parameters
        if rope["rope_type"] == "dynamic" and rope.get("alpha"):
            base = rope["rope_theta"] * rope["alpha"] ** (config.head_dim / (config.head_dim - 2))
            config = copy(config)
            config.rope_parameters = {"rope_type": "default", "rope_theta": base}
        spec = Llama.read_spec(config)
        return spec and replace(spec, norms_after_rotary=True)


class Cohere(Llama):
    """Command R: attention and MLP get the same layer norm of x, which has no bias. Pairs of rotary embeddings are
    neighbours, and logits have a factor."""

    interleaved = True

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; also None for norms of queries and keys, which are layer norms with weights for all heads."""
        spec = None if getattr(config, "use_qk_norm", False) else Llama.read_spec(config)
        return spec and replace(spec, layer_norm=True, parallel=True, logits_scale=config.logit_scale)


class Cohere2(Cohere):
    """Command R7B and later: Command R with windows in some layers, and rotary embeddings in these alone."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        spec = Cohere.read_spec(config)
        local = tuple(kind == "sliding_attention" and bool(config.sliding_window) for kind in config.layer_types)
        return spec and replace(spec, rotary_layers=local)
