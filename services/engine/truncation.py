"""min_p, top_k and top_p: which tokens stay in the draw."""

from __future__ import annotations

import torch

LIKELIEST = 1024  # top_p is sought among so many first; only flat distributions need a whole sort


def truncate(scores: torch.Tensor, top_k: list[int], top_p: list[float], min_p: list[float]) -> None:
    """Set the scores [requests, vocab] of dropped tokens to -inf, in place; each row's maximum is 0.

    In this order: min_p keeps tokens at least so likely as that share of the likeliest; top_k the k likeliest
    (0: all); top_p the fewest likeliest ones whose share of what is left reaches p. Equal scores stay together.
    """
    for i, (k, p, m) in enumerate(zip(top_k, top_p, min_p, strict=True)):
        row = scores[i]
        if m > 0.0:
            row.masked_fill_(row < torch.tensor(m, dtype=torch.float64).log().to(row), -torch.inf)
        if 0 < k < row.numel():
            row.masked_fill_(row < row.topk(k).values[-1], -torch.inf)
        if p < 1.0:
            row.masked_fill_(row < _nucleus(row, p), -torch.inf)


def _nucleus(row: torch.Tensor, top_p: float) -> torch.Tensor:
    """The lowest score of the fewest likeliest tokens of `row` [vocab] that hold `top_p` of its probability."""
    goal = top_p * row.double().exp().sum()
    for count in (min(LIKELIEST, row.numel()), row.numel()):
        likeliest = row.topk(count).values
        reached = likeliest.double().exp().cumsum(0) >= goal
        if reached[-1]:
            break
    return likeliest[reached.int().argmax()] if reached[-1] else likeliest[-1]
