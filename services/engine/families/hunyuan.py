"""Dense Hunyuan."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama
from services.engine.families.spec import DecoderSpec


class Hunyuan(Llama):
    """Llama's layers, with norms of queries and keys after rotary embeddings. The frequencies of these are those of a
    larger base, if the config has a factor `alpha`; it calls such embeddings `dynamic`, but they are not."""

    head_norms = ("query_layernorm", "key_layernorm")

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        rope = config.rope_parameters
        if rope["rope_type"] == "dynamic" and rope.get("alpha"):
            base = rope["rope_theta"] * rope["alpha"] ** (config.head_dim / (config.head_dim - 2))
            config = copy(config)
            config.rope_parameters = {"rope_type": "default", "rope_theta": base}
        spec = Llama.read_spec(config)
        return spec and replace(spec, family="hunyuan_v1_dense", norms_after_rotary=True)
