"""Repetition, presence and frequency penalties."""

from __future__ import annotations

import torch

from services.engine.rows import Row


def penalised(row: Row) -> bool:
    s = row.sampling
    return s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0


def penalise(logits: torch.Tensor, row: Row) -> None:
    """Change `logits` [vocab] of one request in place.

    Repetition (Keskar et al., 2019) counts prompt and output: logits of seen ids are divided by it if positive,
    multiplied if negative. Presence and frequency (OpenAI) count the output: presence is taken off once for each
    id in it, frequency once for each occurrence.
    """
    s = row.sampling
    if s.repetition_penalty != 1.0:
        seen = torch.tensor(row.token_ids, device=logits.device).unique()
        scores = logits[seen]
        logits[seen] = torch.where(scores > 0, scores / s.repetition_penalty, scores * s.repetition_penalty)
    if s.presence_penalty or s.frequency_penalty:
        output = torch.tensor(row.output_ids, dtype=torch.long, device=logits.device)
        ids, counts = output.unique(return_counts=True)
        logits[ids] -= s.presence_penalty + s.frequency_penalty * counts
