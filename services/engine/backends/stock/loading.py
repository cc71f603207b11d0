"""Loads a transformers folder as a StockDecoder.

A model whose attention needs something that ours does not do is refused at load. Neither an error nor a flag of
transformers shows this reliably (Bloom accepts our attention and never calls it, StableLM says it cannot and does), so
the model runs once and reports what it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from services.engine.backends.stock.attention import NAME, attending
from services.engine.backends.stock.decoder import StockDecoder
from services.engine.batch.kv_cache import LayerShape
from services.engine.families.config import load_config
from services.engine.families.tensors import Tensors
from services.errors import ModelError

# arguments that reach the attention function and mean nothing to it
HARMLESS = frozenset({"dropout", "position_ids", "use_cache"})
FEATURES = {
    "attention_mask": "an attention mask of its own",
    "sliding_window": "a sliding window",
    "softcap": "soft-capped attention scores",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
}


def load_stock(
    folder: Path, dtype: torch.dtype, device: torch.device, tensors: Tensors | None = None, path: str = "sdpa"
) -> StockDecoder:
    """The model in `folder`, or of its config with these tensors; for `path` see Decoder. Raises ModelError."""
    config = load_config(folder)
    model = make_model(config, tensors, dtype, device) if tensors else load_model(folder, dtype, device)
    return StockDecoder(model, check_attention(model, config.num_hidden_layers), path)


def import_family(folder: Path) -> None:
    """Build the model of `folder` without memory for weights. transformers imports a family's code when it first builds
    one, which takes seconds, where weights may take milliseconds. Raises ModelError."""
    config = load_config(folder)
    with torch.device("meta"):
        AutoModelForCausalLM.from_config(config)


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The model in `folder`, with our attention if it can be replaced, which `check_attention` tells. Raises
    ModelError."""
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} holds no causal language model with safetensors: {error}") from error
    model.set_attn_implementation(NAME)
    return model.to(device).eval()


def make_model(config: Any, tensors: Tensors, dtype: torch.dtype, device: torch.device) -> Any:
    """As `load_model`, of this config with weights from `tensors`."""
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors.read(name))
    model.set_attn_implementation(NAME)
    return model.eval()


def check_attention(model: Any, num_layers: int) -> list[LayerShape]:
    """Run three tokens through `model`. Each layer must call our attention once and ask for nothing else, and the head
    must be a step of its own, because prompts are scored by running only that.

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
    """An attention backend that records what it is asked for and returns zeros."""

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
    """Whether the argument asks for something: None and False do not, `is_causal` only if it is false."""
    return value is False if name == "is_causal" else value is not None and value is not False
