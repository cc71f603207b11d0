"""SmolLM3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama
from services.engine.families.spec import DecoderSpec


class SmolLm3(Llama):
    """Llama's layers; some of them have no rotary embeddings."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        spec = Llama.read_spec(config)
        rotary = tuple(bool(kept) for kept in config.no_rope_layers[: config.num_hidden_layers])
        return spec and replace(spec, family="smollm3", rotary_layers=rotary)
