"""Arcee."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.llama import Llama
from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import Linear


class Arcee(Llama):
    """Llama's layers, with MLPs without gates."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        spec = Llama.read_spec(config)
        return spec and replace(spec, family="arcee", gated=False)

    def _up(self, layer: str) -> Linear:
        return self._stacked([f"{layer}.mlp.up_proj"], [self._shard.of(self._spec.intermediate)])
