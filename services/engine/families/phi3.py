"""Phi-3 and Phi-4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.decoder_weights import Linear
from services.engine.families.llama import Llama
from services.engine.spec import DecoderSpec

LONG_ROPE = "longrope"


class Phi3(Llama):
    """Llama's layers. Checkpoints keep queries, keys and values as one tensor, gates and the rest of the MLP as
    another. Rotary embeddings may be partial (Phi-4-mini), and their frequencies others for long requests."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        spec = Llama.read_rotary_spec(config)
        if spec is None or config.rope_parameters["rope_type"] != LONG_ROPE:
            return spec
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        short = config.rope_parameters["original_max_position_embeddings"]
        frequencies, _ = ROPE_INIT_FUNCTIONS[LONG_ROPE](config, seq_len=short + 1)
        return replace(spec, long_frequencies=tuple(frequencies.tolist()), short_length=short)

    def _qkv(self, layer: str) -> Linear:
        spec = self._spec
        queries, keys = self._head_rows(spec.queries_per_kv), self._head_rows()
        key, value = spec.heads * spec.head_dim, (spec.heads + spec.kv_heads) * spec.head_dim  # the first rows of each
        rows = [queries, *((first + keys[0], first + keys[1]) for first in (key, value))]
        fused = self._stacked([f"{layer}.self_attn.qkv_proj"] * 3, rows)
        return self._paired(fused, queries[1] - queries[0] + keys[1] - keys[0])

    def _up(self, layer: str) -> Linear:
        return self._stacked([f"{layer}.mlp.gate_up_proj"] * 2, self._halves(self._spec.intermediate))
