"""Choosing tokens on a CPU: one pass over all logits, then each request among its own few largest ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch

from services.engine import adjustments
from services.engine.blocks import Blocks, Floats, maxima, maxima_of
from services.engine.choice import Choice, is_plain
from services.engine.contenders import Contenders, contenders
from services.engine.noise import gumbel_of, keys
from services.engine.rows import Row
from services.engine.truncation import Truncation
from services.messages import Logprobs


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> Choice:
    """A token for each row of `logits` [requests, vocab], in any dtype. Requests have their adjustments."""
    tops = maxima(logits).float().numpy()
    likeliest = tops.argmax(axis=1)
    best = tops[np.arange(len(rows)), likeliest]
    width = logits.shape[1] // tops.shape[1]
    inside = logits.unflatten(1, (-1, width))[torch.arange(len(rows)), torch.from_numpy(likeliest)].argmax(dim=-1)
    tokens: list[int] = (likeliest * width + inside.numpy()).tolist()
    sound: list[bool] = np.isfinite(best).tolist()
    possible = [True] * len(rows)
    drawn: list[int] = []
    found: list[Contenders] = []
    special = [i for i, row in enumerate(rows) if sound[i] and not is_plain(row)]
    settings = [rows[i].sampling for i in special]
    limits = Truncation.of(settings, logits.shape[1])
    secret = keys((s.seed for s in settings), (s.choice for s in settings), (len(rows[i].token_ids) for i in special))
    numbers = _numbers(logits)
    for n, (i, row) in enumerate(zip(special, _changed(logits, numbers, tops, rows, special), strict=True)):
        possible[i] = bool(row.best > -math.inf)
        if rows[i].sampling.temperature <= 0.0:
            tokens[i] = row.likeliest()
        elif possible[i]:
            drawn.append(i)
            found.append(contenders(row, limits.one(n), secret[n]))
    for i, token in zip(drawn, _winners(found), strict=True):
        tokens[i] = token
    logprobs = {
        i: _logprobs(Blocks(numbers(i), tops[i]), row.sampling.logprobs, tokens[i])
        for i, row in enumerate(rows)
        if row.sampling.logprobs is not None and sound[i]
    }
    return Choice(tokens, sound, possible, logprobs)


Numbers = Callable[[int], Floats]


def _numbers(logits: torch.Tensor) -> Numbers:
    """The logits [vocab] of a request, not to be changed."""
    return logits.numpy().__getitem__ if logits.dtype == torch.float32 else lambda i: logits[i].float().numpy()


def _changed(
    logits: torch.Tensor, numbers: Numbers, tops: Floats, rows: Sequence[Row], which: list[int]
) -> Iterator[Blocks]:
    """The logits of these requests with their adjustments; each is good until the next."""
    changes = adjustments.gather(rows, logits.shape[1])
    arrays = (changes.index, changes.columns, changes.settings)
    values = adjustments.adjusted(logits, *(torch.from_numpy(array) for array in arrays)).numpy()
    scores = np.empty(logits.shape[1], np.float32)  # one for all stays in the caches
    for i in which:
        if rows[i].adjustments is None:
            yield Blocks(numbers(i), tops[i])
        else:
            scores[:] = numbers(i)
            mine = slice(changes.starts[i], changes.starts[i + 1])
            scores[changes.index[mine] - i * logits.shape[1]] = values[mine]
            yield Blocks(scores, maxima_of(scores))


def _winners(found: list[Contenders]) -> list[int]:
    """Of each draw the token with the largest score + noise."""
    if not found:
        return []
    counts = [len(one.ids) for one in found]
    ids = np.concatenate([one.ids for one in found])
    scores = np.concatenate([one.scores for one in found])
    scores += gumbel_of(np.repeat([one.key for one in found], counts), ids)
    bounds = pairwise(accumulate(counts, initial=0))
    winners: list[int] = ids.take([begin + int(scores[begin:end].argmax()) for begin, end in bounds]).tolist()
    return winners


def _logprobs(row: Blocks, count: int, token: int) -> Logprobs:
    """Log probabilities of the raw logits, before temperature, bias and penalties; lower ids first among equals."""
    whole = row.log_sum()
    ids = row.largest(min(count, len(row.logits)))
    values = row.logits[ids].astype(np.float64) - whole
    return Logprobs(float(row.logits[token]) - whole, list(zip(ids.tolist(), values.tolist(), strict=True)))
