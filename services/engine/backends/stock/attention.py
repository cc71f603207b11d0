"""The function that models call for attention. It is the only one that knows about requests.

transformers' layers look attention up in a registry by name, so any decoder runs flat as [1, total_tokens] with this
function. Its backend is a context variable and not a keyword, because some families (StableLM) drop keywords.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from services.engine.backends.stock.latent import LATENT, Latent

NAME = "orca"
PROBE = "orca-probe"  # the same, but masks are what the model asks for: see `masks`


class AttentionBackend(Protocol):
    """Attention of one iteration, over all layers."""

    def attend(
        self,
        layer: int | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        """query [total_tokens, heads, dim], key and value [total_tokens, kv_heads, dim] -> [total_tokens, heads, dim].

        `extras` are the other keyword arguments of the model's layer.
        """
        ...


_backend: ContextVar[AttentionBackend] = ContextVar("attention backend")


@contextmanager
def attending(backend: AttentionBackend) -> Iterator[None]:
    """Within this block, models loaded with `attn_implementation=NAME` attend through `backend`."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: query [1, heads, total_tokens, dim]; returns [1, total_tokens, heads, dim]."""
    layer = getattr(module, "layer_idx", None)
    latent: Latent | None = getattr(module, LATENT, None)
    if latent:
        query = latent.queries(query)
    flat_query, flat_key, flat_value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    extras["attention_mask"] = attention_mask
    if extras.get("is_causal") is None:
        extras["is_causal"] = getattr(module, "is_causal", True)
    output = _backend.get().attend(layer, flat_query, flat_key, flat_value, scaling, extras)
    return (latent.outputs(output) if latent else output)[None], None


for name in (NAME, PROBE):
    AttentionInterface.register(name, _attention)
