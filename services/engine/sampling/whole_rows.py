"""Log probabilities and the likeliest tokens of whole rows of logits, by operations on all of them at once.

Sums are those of integers and tokens have an order without ties, so neither a row's place nor the rows beside it change
a bit: a library's softmax and top-k promise neither.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch

from services.engine.sampling.truncation import WHOLE, weights

AT_ONCE = 1 << 24  # logits at once: 24 bytes of memory for each
CHUNK = 64  # tokens; the last chunk of a row may have fewer; kernels/search.h has the same number


def kernels(raw: torch.Tensor) -> ModuleType | None:
    """`triton_rows` for logits on CUDA, where there is Triton."""
    return _triton_rows() if raw.is_cuda else None


@cache
def _triton_rows() -> ModuleType | None:
    try:
        from services.engine.sampling import triton_rows
    except ImportError:
        return None
    return triton_rows


def score(
    raw: torch.Tensor, own: torch.Tensor, count: int, maxima: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log probabilities [rows, 1 + count], float64, of tokens `own` [rows] and of the likeliest tokens in
    descending order, whose ids [rows, count] are the second result, of equal ones the lower first; by logits `raw`
    [rows, vocab], float32. `maxima` [rows, chunks] are those of their chunks, where they are known."""
    logs, ids = [], []
    rows = max(1, AT_ONCE // raw.shape[1])
    for begin in range(0, len(raw), rows):
        some, mine = raw[begin : begin + rows], own[begin : begin + rows, None]
        most = chunk_maxima(some) if maxima is None else maxima[begin : begin + rows]
        likeliest = _likeliest(some, most, count)
        values = some.gather(1, torch.cat([mine, likeliest], dim=1)).double()
        logs.append(values - _log_sums(some, most.amax(dim=1)))
        ids.append(likeliest)
    return torch.cat(logs), torch.cat(ids)


def chunk_maxima(raw: torch.Tensor) -> torch.Tensor:
    """The largest logit of each chunk [rows, chunks]; not finite where a chunk has NaN."""
    if known := kernels(raw):
        found: torch.Tensor = known.maxima(raw)
        return found
    whole, rest = divmod(raw.shape[1], CHUNK)
    maxima = raw[:, : whole * CHUNK].unflatten(1, (whole, CHUNK)).amax(dim=-1)
    return torch.cat([maxima, raw[:, -rest:].amax(dim=-1, keepdim=True)], dim=1) if rest else maxima


def _log_sums(raw: torch.Tensor, tops: torch.Tensor) -> torch.Tensor:
    """log(sum(exp(raw))) [rows, 1], float64."""
    known = kernels(raw)
    sums = known.weigh(raw, tops) if known else weights(raw - tops[:, None]).sum(dim=1)
    return (tops.double() + (sums.double() / WHOLE).log())[:, None]


def _likeliest(raw: torch.Tensor, maxima: torch.Tensor, count: int) -> torch.Tensor:
    """Ids [rows, count]. In the order of chunks by their maxima, the first `count` chunks have these tokens."""
    chunks = _numbered(maxima).topk(min(count, maxima.shape[1])).values
    first = (0xFFFFFFFF - chunks.bitwise_and_(0xFFFFFFFF)) * CHUNK
    ids = (first[:, :, None] + torch.arange(CHUNK, device=raw.device)).flatten(1)
    values = raw.gather(1, ids.clamp(max=raw.shape[1] - 1))
    order = _numbered(values, ids).masked_fill_(ids >= raw.shape[1], torch.iinfo(torch.int64).min)
    return 0xFFFFFFFF - order.topk(count).values.bitwise_and_(0xFFFFFFFF)


def _numbered(numbers: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Integers in the order of the numbers [rows, columns], which hold their ids, or columns; of equal numbers the
    lower id is larger."""
    bits = (numbers + 0.0).view(torch.int32)  # adding makes the two zeros equal
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32  # as that of the numbers
    if ids is None:
        ids = torch.arange(numbers.shape[1], device=numbers.device)
    return order + (0xFFFFFFFF - ids)
