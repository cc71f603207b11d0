"""The function that models call for attention. It is the only one that knows about requests.

transformers' layers look attention up in a registry by name, so any decoder runs flat as [1, total_tokens] with this
function. Its backend is a context variable and not a keyword, because some families (StableLM) drop keywords.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from services.engine.backends.stock.latent import LATENT, Latent

NAME = "orca"
PROBE = "orca-probe"  # the same, but masks are what the model asks for: see `masks`


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer of a model asks of attention, for the tokens of an iteration."""

    layer: int | None  # the model's number for it
    query: torch.Tensor  # [total_tokens, heads, dim]
    key: torch.Tensor  # [total_tokens, kv_heads, dim]
    value: torch.Tensor  # [total_tokens, kv_heads, value_dim]
    scaling: float | None  # a factor of scores; None: 1 / sqrt(dim)
    extras: dict[str, Any]  # the other keyword arguments of the model's layer

    def empty(self) -> torch.Tensor:
        """A tensor [total_tokens, heads, value_dim] for the output; its contents are undefined."""
        return self.query.new_empty(*self.query.shape[:2], self.value.shape[-1])


class AttentionBackend(Protocol):
    """Attention of one iteration, over all layers."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """The output [total_tokens, heads, value_dim] of one layer."""
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
    """The attention function that transformers calls: query [1, heads, total_tokens, dim]; returns
    [1, total_tokens, heads, dim]."""
    layer = getattr(module, "layer_idx", None)
    latent: Latent | None = getattr(module, LATENT, None)
    if latent:
        query = latent.queries(query)
    flat_query, flat_key, flat_value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    extras["attention_mask"] = attention_mask
    if extras.get("is_causal") is None:
        extras["is_causal"] = getattr(module, "is_causal", True)
    output = _backend.get().attend(AttentionCall(layer, flat_query, flat_key, flat_value, scaling, extras))
    return (latent.outputs(output) if latent else output)[None], None


for name in (NAME, PROBE):
    AttentionInterface.register(name, _attention)
