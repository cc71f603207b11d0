"""What a loaded model asks of attention, and whether it can run on a flat batch at all.

Neither an error nor a flag of transformers shows this reliably (Bloom accepts our attention and never calls it,
StableLM says it cannot and does), so the model runs and reports what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import BoundArguments
from typing import Any

import torch
from transformers import DynamicCache

from services.engine.backends.stock.attention import NAME, PROBE, AttentionCall, attending
from services.engine.backends.stock.masks import LayerMask, MaskRequest
from services.engine.backends.stock.states import StateLayer, advancing
from services.engine.batch.kv_cache import LayerShape
from services.errors import ModelError

# arguments that reach the attention function and mean nothing to it
HARMLESS = frozenset({"dropout", "position_ids", "use_cache"})
# arguments that `SdpaAttention` follows, and those that `_mask_of` reads
SERVED = frozenset({"softcap", "s_aux"})
OF_THE_MASK = frozenset({"attention_mask", "is_causal", "sliding_window"})
FEATURES = {"position_bias": "a position bias"}
TOKENS = 3
# Of the root mean square. Another order of the same tokens changes roundings; a token that sees others changes more.
TOLERANCE = 0.02

Extras = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What one layer keeps of a token, and which tokens it attends to."""

    index: int  # the model's number for it
    shape: LayerShape
    mask: LayerMask


def check_attention(model: Any, num_layers: int, states: Sequence[StateLayer] = ()) -> list[AttentionLayer]:
    """Run a few tokens through `model`, and the same tokens in reverse order. Returns the layers that attend.

    Each layer must call our attention once and ask for nothing but what it serves, or be one of those with `states`, or
    have neither. All else must compute each token from the token and its position alone: then both runs compute the
    same. The head must be a step of its own, because prompts are scored by running only that. Raises ModelError naming
    what is not served.
    """
    kind = model.config.get_text_config().model_type
    model.set_attn_implementation(PROBE)
    try:
        there, back = (_run(model, order) for order in (torch.arange(TOKENS), torch.arange(TOKENS).flip(0)))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise ModelError(f"{kind}: cannot be run on a flat batch: {error}") from error
    finally:
        model.set_attn_implementation(NAME)
    if not there.own_head:
        raise ModelError(f"{kind}: its logits cannot be made from its hidden states alone, so it is not served")
    cache = DynamicCache(config=model.config)
    without = _without_state(there.layers, states, cache, num_layers)
    if without or len(set(there.layers)) != len(there.layers):
        raise ModelError(f"{kind}: {_missing(model, there.layers, without, num_layers)}")
    masks = [_mask_of(kind, extras) for extras in there.extras]
    if not _agree(dict(zip(there.layers, masks, strict=True)), cache):
        raise ModelError(f"{kind}: a window that its masks lack is not served")
    if not all(_equal(one, other.flip(0)) for one, other in zip(there.seen, back.seen, strict=True)):
        raise ModelError(
            f"{kind}: its layers mix tokens by more than attention, or place them by more than their positions, so it "
            "is not served"
        )
    return [AttentionLayer(*layer) for layer in zip(there.layers, there.shapes, masks, strict=True)]


def base_of(model: Any) -> Any:
    """All of the model but the head. transformers takes a part of the head of ModernBERT's decoder for it, as that is
    named `decoder`, and all of Llama 4, as that names its base otherwise than it says."""
    candidates = (model.get_decoder(), model.base_model, getattr(model, "model", model))
    return next((one for one in candidates if one not in (model, model.get_output_embeddings())), model)


def logits_after(model: Any, hidden: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Run the head alone on `hidden`, which the base returned, for the tokens of these indices: [tokens, vocab]."""
    base = base_of(model)
    base.forward = lambda *args, **named: hidden
    try:
        # as many ids as hidden states: Gemma 4 takes fewer for a base that has left out the others
        ids = torch.zeros(hidden[0].shape[:2], dtype=torch.long, device=model.device)
        output = model(input_ids=ids, position_ids=ids, use_cache=False, logits_to_keep=tokens)
    finally:
        del base.forward
    logits: torch.Tensor = output.logits[0]
    return logits


def _run(model: Any, tokens: torch.Tensor) -> _Recorder:
    """Run `tokens` [tokens] at positions of the same numbers."""
    recorder, hidden = _Recorder(), []
    hook = base_of(model).register_forward_hook(lambda module, inputs, output: hidden.append(output))
    rows = tokens.to(model.device)
    everything = torch.arange(len(tokens), device=model.device)
    with torch.inference_mode():
        try:
            with attending(recorder), advancing(recorder):
                output = model(
                    input_ids=rows[None], position_ids=rows[None], use_cache=False, logits_to_keep=everything
                )
        finally:
            hook.remove()
        logits = output.logits[0]
        recorder.seen.append(logits.float())
        if len(hidden) == 1:
            again = logits_after(model, hidden[0], everything[1:])
            recorder.own_head = again.shape == logits[1:].shape and _equal(again.float(), logits[1:].float())
    return recorder


def _without_state(called: list[int], states: Sequence[StateLayer], cache: Any, num_layers: int) -> list[int]:
    """The layers for which a cache of transformers has a place, and which have neither called our attention nor a state
    that is known."""
    known = {*called, *(layer.index for layer in states)}
    dummy = {index for index, dummy in enumerate(_dummies(cache)) if dummy} if states else set()
    return [index for index in range(num_layers) if index not in known and index not in dummy]


def _missing(model: Any, called: list[int], without: list[int], num_layers: int) -> str:
    """Why layers did not call our attention once each."""
    if without and getattr(model, "_is_stateful", False):
        return (
            f"layers {', '.join(map(str, without))} keep a state in place of keys and values, which is not in "
            "transformers' cache, so it is not served"
        )
    return f"its attention cannot be replaced, so it is not served (layers that called: {called}, layers: {num_layers})"


def _mask_of(kind: str, extras: Extras) -> LayerMask:
    """The mask of a layer that asked for `extras`. Raises ModelError if it asked for what is not served."""
    for name in sorted(extras.keys() - HARMLESS - SERVED - OF_THE_MASK):
        if extras[name] is not None and extras[name] is not False:
            raise ModelError(f"{kind}: {FEATURES.get(name, f'attention with {name}')} is not served")
    asked = extras["attention_mask"]
    if asked is None and extras["is_causal"] is False:
        raise ModelError(f"{kind}: attention to later tokens is not served")
    mask = asked.read() if isinstance(asked, MaskRequest) else None if asked is not None else LayerMask()
    if mask is None:
        raise ModelError(f"{kind}: an attention mask of its own is not served")
    if extras.get("sliding_window") not in (None, False, mask.window):
        raise ModelError(f"{kind}: a sliding window of {extras['sliding_window']} whose mask has {mask} is not served")
    return mask


def _agree(masks: dict[int, LayerMask], cache: Any) -> bool:
    """Whether transformers' own cache keeps what the masks of these layers show. Layers that read the keys of others
    have a dummy."""
    layers = enumerate(zip(cache.is_sliding, _dummies(cache), strict=True))
    return all(dummy or masks[index].limited == limited for index, (limited, dummy) in layers if index in masks)


def _dummies(cache: Any) -> list[bool]:
    """Which layers of transformers' cache hold nothing. Early releases of transformers 5 have no such layers: there a
    cache ends with the last layer that has keys of its own."""
    return getattr(cache, "is_dummy", None) or [False] * len(cache.layers)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results differ by roundings only."""
    return bool((one - other).square().mean().sqrt() <= TOLERANCE * one.square().mean().sqrt())


class _Recorder:
    """A backend of attention and of states that records what it is asked for and returns zeros."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.shapes: list[LayerShape] = []
        self.extras: list[Extras] = []
        self.seen: list[torch.Tensor] = []  # [tokens, numbers], of each layer its input; at last the logits
        self.own_head = False  # whether the head, run alone, makes the same logits

    def attend(self, call: AttentionCall) -> torch.Tensor:
        if not len(call.query) == len(call.key) == len(call.value) == TOKENS:
            raise ValueError(f"{len(call.query)} queries and {len(call.key)} keys for {TOKENS} tokens")
        if call.layer is None:
            raise ValueError("a layer without an index")
        self.layers.append(call.layer)
        self.shapes.append(LayerShape(call.key.shape[1], call.key.shape[2], call.value.shape[2]))
        self.extras.append(call.extras)
        self.seen.append(torch.cat([part.flatten(1).float() for part in (call.query, call.key, call.value)], 1))
        return call.empty().zero_()

    def advance(self, layer: StateLayer, hidden: torch.Tensor, call: BoundArguments) -> torch.Tensor:
        if len(hidden) != TOKENS:
            raise ValueError(f"{len(hidden)} hidden states for {TOKENS} tokens")
        self.seen.append(hidden.float())
        return torch.zeros_like(hidden)
