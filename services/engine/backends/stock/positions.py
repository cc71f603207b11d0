"""Makes everything that depends on positions depend on a token's own position, and not on the batch."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.errors import ModelError


def place_by_position(model: Any, max_model_len: int) -> str:
    """Change a loaded model for requests of up to `max_model_len` tokens. Returns a name of what was chosen by this
    length, on which tokens depend. Raises ModelError.

    - Rotary embeddings that transformers chooses by the longest position of a batch are chosen once (`_fix_rotary`).
    - Llama 4 scales queries by their index in the batch, which is their position only for whole prompts.
    """
    chosen = ""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        by_layer_type = kinds if isinstance(kinds, dict) else {None: kinds} if isinstance(kinds, str) else {}
        fixed = {one: _fix_rotary(module, kind, one, max_model_len) for one, kind in by_layer_type.items()}
        if "longrope" in by_layer_type.values():
            chosen = f"longrope-{max_model_len}"
        if fixed:
            module.rope_type = fixed if isinstance(kinds, dict) else fixed[None]
    scaled = [one for one in model.modules() if getattr(one, "attn_temperature_tuning", False) and not one.use_rope]
    if scaled:
        _scale_by_position(model, scaled)
    return chosen


def _fix_rotary(module: Any, kind: str, layer_type: str | None, max_model_len: int) -> str:
    """Set the frequencies of rotary embeddings. Returns the kind that they have from then on.

    `longrope` has long and short factors. The keys of a request, which others may share, keep one of them, so the
    longest request that is served decides, as in vLLM. `dynamic` changes beyond the model's own length only, which no
    request exceeds.
    """
    if "dynamic" in kind:
        if max_model_len > module.max_seq_len_cached:
            raise ModelError(
                f"rope type {kind!r} is served up to {module.max_seq_len_cached} tokens, not {max_model_len}"
            )
        return "default"
    if kind == "longrope":
        own: torch.Tensor = getattr(module, f"{layer_type}_inv_freq" if layer_type else "inv_freq")
        named = {"layer_type": layer_type} if layer_type else {}
        frequencies, _ = ROPE_INIT_FUNCTIONS[kind](module.config, own.device, seq_len=max_model_len, **named)
        own.copy_(frequencies)
        return "default"
    return kind


def _scale_by_position(model: Any, layers: list[Any]) -> None:
    """Scale the queries of these layers of Llama 4 by the positions that the model gets."""
    positions = torch.empty(0)

    def remember(module: Any, inputs: Any, named: dict[str, Any]) -> None:
        nonlocal positions
        positions = named["position_ids"]

    def scale(layer: Any, queries: torch.Tensor) -> torch.Tensor:
        """queries [1, tokens, heads * dim]."""
        steps = torch.floor((positions.float() + 1.0) / layer.floor_scale)
        factors = torch.log1p(steps) * layer.attn_scale + 1.0
        scaled: torch.Tensor = queries * factors[..., None]
        return scaled.to(queries.dtype)

    model.register_forward_pre_hook(remember, with_kwargs=True)
    for layer in layers:
        layer.attn_temperature_tuning = False
        layer.q_proj.register_forward_hook(lambda module, inputs, queries, layer=layer: scale(layer, queries))
