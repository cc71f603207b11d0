"""ERNIE 4.5 and Helium."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama
from services.engine.families.spec import DecoderSpec


class Interleaved(Llama):
    """Llama's layers, with neighbours as the pairs of rotary embeddings."""

    interleaved = True

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        spec = None if getattr(config, "use_bias", False) else Llama.read_spec(config)
        return spec and replace(spec, family=config.model_type)
