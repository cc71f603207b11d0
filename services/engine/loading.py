"""A transformers folder as a model that runs flat batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from services.engine.attention import NAME
from services.engine.support import check_config
from services.errors import ModelError, SettingsError


def load_config(folder: Path) -> Any:
    """The config of the text model in `folder`, with nothing in it that is not served. Raises ModelError."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} holds no model that transformers can read: {error}") from error
    check_config(config)
    return config


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The model in `folder`, its attention replaced by ours where it lets us. Raises ModelError.

    Whether it did is known only after `support.check_attention`.
    """
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} holds no causal language model with safetensors: {error}") from error
    model.set_attn_implementation(NAME)
    return model.to(device).eval()


def choose_length(own: int, asked: int) -> int:
    """The longest request in tokens: `asked`, or the model's own. Raises SettingsError where it is longer."""
    if asked > own:
        raise SettingsError(f"max_model_len={asked} is over the model's {own}")
    return asked or own
