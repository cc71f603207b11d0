"""min_p, top_k and top_p: which tokens stay in the draw."""

from __future__ import annotations

import torch

from services.requests import SamplingParams

LIKELIEST = 1024  # top_p is sought among so many first; only flat distributions need a whole sort


def truncate(scores: torch.Tensor, settings: list[SamplingParams]) -> None:
    """Set the scores [requests, vocab] of dropped tokens to -inf, in place; each row's maximum is 0.

    In this order: min_p keeps tokens at least so likely as that share of the likeliest; top_k the k likeliest
    (0: all); top_p the fewest likeliest ones whose share of what is left reaches p. Equal scores stay together.
    """
    if any(s.min_p > 0.0 for s in settings):
        shares = torch.tensor([s.min_p for s in settings], device=scores.device)
        _drop_below(scores, shares.log())
    if any(s.top_k > 0 for s in settings):
        _drop_below(scores, _kth(scores, [s.top_k for s in settings]))
    if any(s.top_p < 1.0 for s in settings):
        _drop_below(scores, _nucleus(scores, [s.top_p for s in settings]))


def _drop_below(scores: torch.Tensor, limits: torch.Tensor) -> None:
    scores.masked_fill_(scores < limits[:, None], -torch.inf)


def _kth(scores: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    """[requests]: the k-th largest score of each row, -inf where k is 0 or the whole vocabulary."""
    vocab = scores.shape[1]
    counts = torch.tensor([k if 0 < k < vocab else 0 for k in top_k], device=scores.device)
    likeliest = scores.topk(min(max(top_k), vocab)).values
    kth = likeliest.gather(1, (counts - 1).clamp(min=0)[:, None])[:, 0]
    return kth.masked_fill(counts == 0, -torch.inf)


def _nucleus(scores: torch.Tensor, top_p: list[float]) -> torch.Tensor:
    """[requests]: the lowest score of the fewest likeliest tokens that hold `top_p`, -inf where that is 1."""
    shares = torch.tensor(top_p, dtype=torch.float64, device=scores.device)
    whole = shares >= 1.0
    goal = (shares * scores.exp().sum(dim=-1, dtype=torch.float64)).masked_fill(whole, 0.0)
    for count in (min(LIKELIEST, scores.shape[1]), scores.shape[1]):
        likeliest = scores.topk(count).values
        reached = likeliest.exp().cumsum(dim=-1, dtype=torch.float64) >= goal[:, None]
        if reached[:, -1].all():
            break
    reached[:, -1] = True  # all of them, if rounding keeps the sum below the goal
    limits = likeliest.gather(1, reached.int().argmax(dim=-1)[:, None])[:, 0]
    return limits.masked_fill(whole, -torch.inf)
