"""Finds the modules of a loaded model that keep a state, and checks that they can run a request in pieces.

Which modules these are is not written down anywhere, so the model runs with transformers' own cache, and the cache
notes which module asks it for a state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from services.engine.backends.stock.attention import NAME, PROBE, AttentionCall, attending
from services.engine.backends.stock.states import StateKey, StateLayer
from services.engine.batch.kv_cache import StateShape
from services.engine.families.config import CACHE_ARGUMENTS
from services.errors import ModelError

TOKENS = 8  # more than a convolution reaches back
# how the check cuts these tokens into pieces
PIECES = ([TOKENS], [3, 1, 1, 3])
ONE_BY_ONE = [4, 1, 1, 1, 1]
TOLERANCE = 0.01  # of the root mean square: pieces are summed in another order


def find_states(model: Any) -> list[StateLayer]:
    """Let the modules of `model` that keep a state run through the StateBackend, and return them in the order in which
    they run. Raises ModelError for those that cannot be cut into pieces of a few tokens.
    """
    if not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=model.config).layers):
        return []
    kind = model.config.get_text_config().model_type
    model.set_attn_implementation(PROBE)
    try:
        asked = _watch(model)
        layers = [StateLayer(module, *found.of()) for module, found in asked.items()]
        checked: dict[Any, bool] = {}  # layers of one kind are alike, and a check takes a while
        for (module, found), layer in zip(asked.items(), layers, strict=True):
            alike = type(module), tuple(layer.shapes.items())
            if alike not in checked:
                checked[alike] = _continues_one_by_one(kind, layer, found)
            layer.one_by_one = checked[alike]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError, StopIteration) as error:
        raise ModelError(f"{kind}: its layers with a state are not served: {error}") from error
    finally:
        model.set_attn_implementation(NAME)
    return layers


class _Asked:
    """What a module has asked a cache for."""

    def __init__(self, call: inspect.BoundArguments) -> None:
        self.call = call
        self.layers: set[int] = set()
        self.shapes: dict[StateKey, StateShape] = {}

    def of(self) -> tuple[int, dict[StateKey, StateShape]]:
        """The layer's index in the cache, and its states. Raises ValueError for a module that serves several layers."""
        if len(self.layers) > 1:
            raise ValueError(f"one module keeps the states of layers {sorted(self.layers)}")
        return min(self.layers), self.shapes


class _WatchedCache(DynamicCache):  # type: ignore[misc]  # transformers has no types
    """A cache that notes which module gives it a state."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.asked: dict[Any, _Asked] = {}  # by module, in the order of their first call
        self.running: list[tuple[Any, inspect.BoundArguments]] = []  # the modules that run, the innermost last

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **named: Any) -> Any:
        full = super().update_conv_state(conv_states, layer_idx, state_idx=state_idx, **named)
        layer: Any = self.layers[layer_idx]
        self._note(layer_idx, StateKey(False, state_idx), layer.conv_states[state_idx])
        return full

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **named: Any
    ) -> Any:
        self._note(layer_idx, StateKey(True, state_idx), recurrent_states)
        return super().update_recurrent_state(recurrent_states, layer_idx, state_idx=state_idx, **named)

    def _note(self, layer_idx: int, key: StateKey, state: torch.Tensor) -> None:
        module, call = self.running[-1]
        asked = self.asked.setdefault(module, _Asked(call))
        asked.layers.add(layer_idx)
        asked.shapes[key] = StateShape(tuple(state.shape[1:]), state.dtype)


def _watch(model: Any) -> dict[Any, _Asked]:
    """The modules that keep a state, and what they ask a cache for, in a run of some tokens."""
    cache = _WatchedCache(model.config)
    name = next(name for name in CACHE_ARGUMENTS if name in inspect.signature(model.forward).parameters)
    tokens = torch.arange(TOKENS, device=model.device)[None]
    with _noting_modules(model, cache), attending(_Zeros()), torch.inference_mode():
        model(input_ids=tokens, use_cache=True, **{name: cache})
    return cache.asked


@contextmanager
def _noting_modules(model: Any, cache: _WatchedCache) -> Iterator[None]:
    """Within this block, `cache.running` has the modules that run and take a cache."""
    hooks = []
    for module in model.modules():
        signature = inspect.signature(module.forward)
        if any(name in signature.parameters for name in CACHE_ARGUMENTS):

            def begin(module: Any, args: Any, named: Any, signature: inspect.Signature = signature) -> None:
                cache.running.append((module, signature.bind(*args, **named)))

            def end(module: Any, args: Any, output: Any) -> None:
                cache.running.pop()

            hooks += [module.register_forward_pre_hook(begin, with_kwargs=True), module.register_forward_hook(end)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Zeros:
    """An attention backend that returns zeros."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return call.empty().zero_()


def _continues_one_by_one(kind: str, layer: StateLayer, asked: _Asked) -> bool:
    """Whether only runs in pieces of one token compute what the module computes alone. Raises ModelError if these do
    not either. A run begins with states of zeros."""
    hidden_name, *_ = asked.call.arguments
    given = asked.call.arguments[hidden_name]
    for name, value in asked.call.arguments.items():
        if name != hidden_name and isinstance(value, torch.Tensor):
            raise ModelError(f"{kind}: its layers with a state depend on {name} of a batch, so it is not served")
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = torch.randn(1, TOKENS, given.shape[-1]).to(given)
        expected = layer.run_alone(hidden, asked.call)
        if all(_close(_run(layer, hidden.split(pieces, 1), asked.call), expected) for pieces in PIECES):
            return False
        if not _close(_run(layer, hidden.split(ONE_BY_ONE, 1), asked.call), expected):
            raise ModelError(f"{kind}: its layers with a state cannot continue a request, so it is not served")
    return True


def _run(layer: StateLayer, pieces: Iterable[torch.Tensor], call: inspect.BoundArguments) -> torch.Tensor:
    """The outputs of a module for the pieces of a request [1, tokens, hidden]."""
    states: list[torch.Tensor] = []
    outputs = []
    for piece in pieces:
        if not states:
            states = [torch.zeros(1, *s.shape, dtype=s.dtype, device=piece.device) for s in layer.shapes.values()]
        output, states = layer.run(piece, states, call)
        outputs.append(output)
    return torch.cat(outputs, 1)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = one.float(), other.float()
    return bool((one - other).square().mean().sqrt() <= TOLERANCE * other.square().mean().sqrt())
