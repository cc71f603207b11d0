"""The oracle: the model as stock transformers runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from load.options import Options, model_folder
from load.trace import Request
from services.engine.backends.stock.loading import read_model


def load_stock(options: Options) -> Any:
    """The model in float32, on the device of the options."""
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return read_model(model_folder(options), torch.float32).to(device)


def likeliest(model: Any, prompt: list[int], tokens: list[int]) -> list[int]:
    """The most likely token at the place of each of `tokens`, given the prompt and the tokens before it. These are
    `tokens` if, and only if, greedy `generate()` gives them."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens], device=model.device)).logits[0]
    return list(logits[len(prompt) - 1 : -1].argmax(-1).tolist())


def alone(model: Any, request: Request) -> list[int]:
    """The tokens of stock greedy `generate()` for `request` alone; the model's own EOS is ignored."""
    prompt = torch.tensor([request.prompt], device=model.device)
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        min_new_tokens=request.max_new_tokens,
    )
    return list(out[0, len(request.prompt) :].tolist())


def oracle(options: Options) -> Callable[[Request], list[int]]:
    """`alone` with the model of the options."""
    return partial(alone, load_stock(options))
