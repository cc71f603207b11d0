"""EXAONE 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama
from services.engine.families.olmo2 import Olmo2
from services.engine.families.spec import DecoderSpec


class Exaone4(Olmo2):
    """OLMo 2's layers, with norms of each head. If some layers have a window, the others have no rotary embeddings."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        spec = Llama.read_spec(config)
        local = tuple(kind == "sliding_attention" for kind in config.layer_types)
        rotary = () if config.sliding_window is None else local
        return spec and replace(spec, family="exaone4", pre_norms=False, post_norms=True, rotary_layers=rotary)
