"""Repetition, presence and frequency penalties."""

from __future__ import annotations

from collections import Counter

import torch

from services.engine.rows import Row


def penalised(row: Row) -> bool:
    """Whether any penalty is set."""
    s = row.sampling
    return s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0


def penalise(logits: torch.Tensor, row: Row) -> None:
    """Change `logits` [vocab] of one request in place.

    Repetition (Keskar et al., 2019) looks at prompt and output: logits of ids in them are divided by it if positive,
    multiplied if negative. Presence and frequency (OpenAI) look at the output: presence is taken off once for each
    id in it, frequency once for each occurrence.
    """
    s = row.sampling
    if s.repetition_penalty != 1.0:
        seen = torch.tensor(row.token_ids, device=logits.device)
        scores = logits[seen]
        logits[seen] = torch.where(scores > 0, scores / s.repetition_penalty, scores * s.repetition_penalty)
    if s.presence_penalty or s.frequency_penalty:
        counts = Counter(row.output_ids)
        ids = torch.tensor(list(counts), dtype=torch.long, device=logits.device)
        occurrences = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= s.presence_penalty + s.frequency_penalty * occurrences
