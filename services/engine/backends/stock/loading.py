"""A transformers folder as a model of transformers' own layers that runs flat batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from services.engine.backends.stock.attention import NAME
from services.engine.backends.stock.decoder import StockDecoder
from services.engine.backends.stock.support import check_attention
from services.engine.families.config import load_config
from services.engine.families.weights import Tensors
from services.errors import ModelError


def load_stock(
    folder: Path, dtype: torch.dtype, device: torch.device, tensors: Tensors | None = None, path: str = "sdpa"
) -> StockDecoder:
    """The model in `folder`, or of its config and these tensors; `path` names its way to compute. Raises ModelError."""
    config = load_config(folder)
    model = make_model(config, tensors, dtype, device) if tensors else load_model(folder, dtype, device)
    return StockDecoder(model, check_attention(model, config.num_hidden_layers), path)


def import_family(folder: Path) -> None:
    """Build the model of `folder` without memory for weights: transformers imports a family's code when one is first
    built, which takes seconds, where weights may take milliseconds. Raises ModelError."""
    config = load_config(folder)
    with torch.device("meta"):
        AutoModelForCausalLM.from_config(config)


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The model in `folder`, its attention replaced by ours where it lets us. Raises ModelError.

    Whether it did is known only after `support.check_attention`.
    """
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
