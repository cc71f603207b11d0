"""Layers that keep a state in place of keys and values: recurrence (Mamba, gated delta rules) and short convolutions.

transformers' modules of this kind take hidden states [requests, tokens, hidden] and a cache, in which they find the
state after the earlier tokens and leave the new one. Here such a module gets the flat tokens of an iteration, and a
backend runs it for some requests at a time, with a cache that has these requests' states: see `state_blocks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, LinearAttentionLayer

from services.engine.batch.kv_cache import StateShape
from services.engine.families.config import CACHE_ARGUMENTS


@dataclass(frozen=True, slots=True)
class StateKey:
    """Names one of the states that a module finds in a cache."""

    recurrent: bool  # else a convolution's last inputs
    index: int  # `state_idx` of transformers' caches


class StateBackend(Protocol):
    """Runs the modules with a state in one iteration."""

    def advance(self, layer: StateLayer, hidden: torch.Tensor, call: inspect.BoundArguments) -> torch.Tensor:
        """hidden [total_tokens, hidden] -> the module's outputs [total_tokens, hidden], by calls of `layer.run`."""
        ...


_backend: ContextVar[StateBackend] = ContextVar("state backend")


@contextmanager
def advancing(backend: StateBackend) -> Iterator[None]:
    """Within this block, each StateLayer's module runs through `backend`."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


class StateLayer:
    """A module that has states, in a model that runs flat as [1, total_tokens]."""

    def __init__(self, module: Any, layer_index: int, shapes: dict[StateKey, StateShape]) -> None:
        """Replaces the module's `forward`. `layer_index` is the layer whose states it takes from a cache."""
        self.shapes = shapes
        self.one_by_one = False  # whether it can continue a request by one token at a time only
        self.index = layer_index
        self._inner = module.forward
        self._signature = inspect.signature(module.forward)
        self._hidden = next(iter(self._signature.parameters))
        self._cache = next(name for name in CACHE_ARGUMENTS if name in self._signature.parameters)
        module.forward = self._forward

    def _forward(self, *args: Any, **named: Any) -> torch.Tensor:
        """In place of the module's: hidden states [1, total_tokens, hidden]."""
        call = self._signature.bind(*args, **named)
        return _backend.get().advance(self, call.arguments[self._hidden][0], call)[None]

    def run(
        self, hidden: torch.Tensor, states: Sequence[torch.Tensor], call: inspect.BoundArguments
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """hidden [requests, tokens, hidden] with each of `shapes` as states [requests, *shape] -> outputs of the size
        of `hidden`, and the states after these tokens. A request without earlier tokens has states of zeros."""
        kept = LinearAttentionLayer(number_of_states=1 + max(key.index for key in self.shapes))
        for key, state in zip(self.shapes, states, strict=True):
            _put(kept, key, state)
        call.arguments[self._hidden] = hidden
        call.arguments[self._cache] = Cache(layers=[kept] * (self.index + 1))
        output = self._inner(*call.args, **call.kwargs)
        return output, [_stores(kept, key)[key.index] for key in self.shapes]

    def run_alone(self, hidden: torch.Tensor, call: inspect.BoundArguments) -> torch.Tensor:
        """hidden [requests, tokens, hidden] of requests without earlier tokens -> outputs of that size. The module gets
        no cache, as if it ran in transformers alone."""
        call.arguments[self._hidden] = hidden
        call.arguments[self._cache] = None
        output: torch.Tensor = self._inner(*call.args, **call.kwargs)
        return output


def _put(kept: LinearAttentionLayer, key: StateKey, state: torch.Tensor) -> None:
    """Set a state as transformers' cache has it after earlier tokens."""
    _stores(kept, key)[key.index] = state
    if key.recurrent:
        kept.is_recurrent_states_initialized[key.index] = True
    else:
        kept.is_conv_states_initialized[key.index] = True
        kept.has_previous_state[key.index] = True
        kept.conv_kernel_size[key.index] = state.shape[-1]
    kept.dtype, kept.device = state.dtype, state.device


def _stores(kept: Any, key: StateKey) -> dict[int, torch.Tensor]:
    """Where a layer of transformers' cache has the states of this kind, by index."""
    stores: dict[int, torch.Tensor] = kept.recurrent_states if key.recurrent else kept.conv_states
    return stores
