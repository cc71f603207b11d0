"""Refusal: why an engine can never run a request."""

from __future__ import annotations

from services.messages import EngineFigures
from services.scheduling.request_entry import Entry


def refusal(entry: Entry, figures: EngineFigures) -> str | None:
    """The reason, with the value and the limit; None where it can run. The gateway refuses the same at its door, from
    the figures of the largest engine, which may be another. An id outside the vocabulary would take a CUDA process
    down."""
    for id in (min(entry.prompt), max(entry.prompt), *entry.named_ids):
        if not 0 <= id < figures.vocab_size:
            return f"token id {id} is outside the vocabulary of {figures.vocab_size}"
    if len(entry.prompt) >= figures.max_model_len:
        return f"the prompt has {len(entry.prompt)} tokens, the model's length is {figures.max_model_len}"
    needed = -(-entry.last // figures.block_size)
    if needed > figures.num_blocks:
        return f"the request needs {needed} KV blocks, this engine has {figures.num_blocks}"
    return None
