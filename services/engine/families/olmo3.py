"""OLMo 3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama, rotary_frequencies
from services.engine.families.olmo2 import Olmo2
from services.engine.families.spec import DecoderSpec

FULL, LOCAL = "full_attention", "sliding_attention"


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
        spec = replace(spec, family="olmo3", pre_norms=False, post_norms=True, norms_all_heads=True)
        local, scale = rotary_frequencies(config, LOCAL)
        if LOCAL not in config.layer_types or (local, scale) == (spec.frequencies, spec.rotary_scale):
            return spec
        return replace(spec, local_frequencies=local, local_rotary_scale=scale) if spec.windows else None
