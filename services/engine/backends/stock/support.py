"""Which models are served this way: what our attention does not do is refused at load, never ignored.

Neither an error nor a flag of transformers tells reliably (Bloom takes our attention silently and never calls it,
StableLM says it cannot and does), so the model is run once and asked what it really does.
"""

from __future__ import annotations

from typing import Any

import torch

from services.engine.backends.stock.attention import attending
from services.engine.batch.kv_cache import LayerShape
from services.errors import ModelError

# these arrive at the attention function without a meaning for it
HARMLESS = frozenset({"dropout", "position_ids", "use_cache"})
FEATURES = {
    "attention_mask": "an attention mask of its own",
    "sliding_window": "a sliding window",
    "softcap": "soft-capped attention scores",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
}


def check_attention(model: Any, num_layers: int) -> list[LayerShape]:
    """Run three tokens through `model`: each layer must call our attention once, and ask for nothing else. Its head
    must be a step of its own, because prompts are scored by running that alone.

    Returns what each layer keeps of a token. Raises ModelError naming the feature that is not served.
    """
    kind = model.config.model_type
    recorder, calls = _Recorder(), []
    hook = model.get_decoder().register_forward_hook(lambda *called: calls.append(called))
    tokens = torch.arange(3, device=model.device)[None]
    try:
        with attending(recorder), torch.inference_mode():
            model(input_ids=tokens, position_ids=tokens, use_cache=False, logits_to_keep=tokens[0, -1:])
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{kind}: cannot be run on a flat batch: {error}") from error
    finally:
        hook.remove()
    if len(calls) != 1:
        raise ModelError(f"{kind}: its logits cannot be made from its hidden states alone, so it is not served")
    if recorder.layers != list(range(num_layers)):
        raise ModelError(
            f"{kind}: its attention cannot be replaced, so it is not served "
            f"(layers that called: {recorder.layers}, layers: {num_layers})"
        )
    for name in sorted(recorder.extras):
        raise ModelError(f"{kind}: {FEATURES.get(name, f'attention with {name}')} is not served")
    return recorder.shapes


class _Recorder:
    """An attention backend that notes what it is asked for and answers zeros."""

    def __init__(self) -> None:
        self.layers: list[int | None] = []
        self.shapes: list[LayerShape] = []
        self.extras: set[str] = set()

    def attend(
        self,
        layer: int | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        self.layers.append(layer)
        self.shapes.append(LayerShape(key.shape[1], key.shape[2], value.shape[2]))
        self.extras |= {name for name, value in extras.items() if name not in HARMLESS and _asks(name, value)}
        return query.new_zeros(*query.shape[:2], value.shape[2])


def _asks(name: str, value: object) -> bool:
    """Whether the argument wants something: None and False do not, `is_causal` only where it is false."""
    return value is False if name == "is_causal" else value is not None and value is not False
