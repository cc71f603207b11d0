"""Log probabilities and the likeliest tokens of whole rows of logits, by operations on all of them at once.

Sums are those of integers and tokens have an order without ties, so neither a row's place nor the rows beside it change
a bit: a library's softmax and top-k promise neither.
"""

from __future__ import annotations

import torch

from services.engine.sampling.truncation import WHOLE, weights

AT_ONCE = 1 << 24  # logits at once: 24 bytes of memory for each


def score(raw: torch.Tensor, own: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The log probabilities [rows, 1 + count], float64, of tokens `own` [rows] and of the likeliest tokens in
    descending order, whose ids [rows, count] are the second result, of equal ones the lower first; by logits `raw`
    [rows, vocab], float32."""
    logs, ids = [], []
    rows = max(1, AT_ONCE // raw.shape[1])
    for begin in range(0, len(raw), rows):
        some, mine = raw[begin : begin + rows], own[begin : begin + rows, None]
        likeliest = _likeliest(some, count)
        values = some.gather(1, torch.cat([mine, likeliest], dim=1)).double()
        logs.append(values - _log_sums(some))
        ids.append(likeliest)
    return torch.cat(logs), torch.cat(ids)


def _log_sums(raw: torch.Tensor) -> torch.Tensor:
    """log(sum(exp(raw))) [rows, 1], float64."""
    tops = raw.amax(dim=1, keepdim=True)
    return tops.double() + (weights(raw - tops).sum(dim=1, keepdim=True).double() / WHOLE).log()


def _likeliest(raw: torch.Tensor, count: int) -> torch.Tensor:
    """Ids [rows, count]."""
    bits = (raw + 0.0).view(torch.int32)  # adding makes the two zeros equal
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32  # as that of the numbers
    ids = torch.arange(raw.shape[1], device=raw.device)
    return 0xFFFFFFFF - (order + (0xFFFFFFFF - ids)).topk(count).values.bitwise_and_(0xFFFFFFFF)
