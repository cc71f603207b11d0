"""Command R: the families `cohere` and `cohere2`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama
from services.engine.families.spec import DecoderSpec


class Cohere(Llama):
    """Attention and MLP get the same layer norm of x, which has no bias. Pairs of rotary embeddings are neighbours, and
    logits have a factor."""

    interleaved = True

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; also None for norms of queries and keys, which are layer norms with weights for all heads."""
        spec = None if getattr(config, "use_qk_norm", False) else Llama.read_spec(config)
        return spec and replace(
            spec, family=config.model_type, layer_norm=True, parallel=True, logits_scale=config.logit_scale
        )


class Cohere2(Cohere):
    """The same with windows in some layers, and rotary embeddings in these alone."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        spec = Cohere.read_spec(config)
        local = tuple(kind == "sliding_attention" and bool(config.sliding_window) for kind in config.layer_types)
        return spec and replace(spec, rotary_layers=local)
