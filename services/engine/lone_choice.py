"""Choosing tokens on a CPU: one pass over all logits, then each request among its own few largest ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import torch

from services.engine import adjustments
from services.engine.blocks import Blocks, Floats, Ids, maxima, maxima_of
from services.engine.choice import Choice, is_plain
from services.engine.contenders import Contenders, Draws, Search
from services.engine.noise import gumbel_of, keys
from services.engine.rows import Row
from services.engine.truncation import Truncation
from services.messages import Logprobs

FIRST = np.zeros(1, np.int64)


def choose(logits: torch.Tensor, rows: Sequence[Row], search: Search) -> Choice:
    """A token for each row of `logits` [requests, vocab], in any dtype. Requests have their adjustments."""
    tops = maxima(logits).float().contiguous().numpy()
    sound: list[bool] = np.isfinite(tops.max(axis=1)).tolist()
    plain, special = ([i for i, row in enumerate(rows) if is_plain(row) == some] for some in (True, False))
    special = [i for i in special if sound[i]]
    asking = [i for i, row in enumerate(rows) if sound[i] and row.sampling.logprobs is not None]
    choice = Choice([0] * len(rows), sound, [True] * len(rows), {})
    if plain:
        for i, token in zip(plain, _likeliest(logits, tops, np.array(plain)), strict=True):
            choice.tokens[i] = token
    if not special and not asking:
        return choice
    numbers = logits.float().contiguous().numpy()
    if special:
        _choose_special(logits, _draws(numbers, tops, rows, special), rows, search, choice)
    if asking:
        wholes = search.log_sums(numbers, tops, np.array(asking, np.int64))
        for i, whole in zip(asking, wholes, strict=True):
            count = rows[i].sampling.logprobs or 0
            choice.logprobs[i] = _logprobs(Blocks(numbers[i], tops[i]), whole, count, choice.tokens[i])
    return choice


def _choose_special(logits: torch.Tensor, draws: Draws, rows: Sequence[Row], search: Search, choice: Choice) -> None:
    """The tokens of the requests of `draws`, those that are drawn or have adjustments, and whether there are any."""
    special: list[int] = draws.requests.tolist()
    drawn, changed = ([n for n, i in enumerate(special) if bool(rows[i].adjustments) == some] for some in (False, True))
    found = [search.contenders(draws.some(drawn))] if drawn else []
    for n, scores in zip(changed, _changed(logits, draws.logits, rows, [special[n] for n in changed]), strict=True):
        i, row = special[n], Blocks(scores, maxima_of(scores))
        choice.possible[i] = bool(row.best > -math.inf)
        if rows[i].sampling.temperature <= 0.0:
            choice.tokens[i] = row.likeliest()
        elif choice.possible[i]:
            drawn.append(n)
            alone = replace(draws.some([n]), logits=scores[None], maxima=row.maxima[None], requests=FIRST)
            found.append(search.contenders(alone))
    for n, token in zip(drawn, _winners(found), strict=True):
        choice.tokens[special[n]] = token


def _likeliest(logits: torch.Tensor, tops: Floats, which: Ids) -> list[int]:
    """The id with the largest logit of each of these rows, the lowest if several are equal."""
    best = tops[which].argmax(axis=1)
    blocks = logits.unflatten(1, (tops.shape[1], -1))
    inside = blocks[torch.from_numpy(which), torch.from_numpy(best)].argmax(dim=-1)
    likeliest: list[int] = (best * blocks.shape[2] + inside.numpy()).tolist()
    return likeliest


def _draws(numbers: Floats, tops: Floats, rows: Sequence[Row], which: list[int]) -> Draws:
    """Of these requests, whatever their temperature."""
    settings = [rows[i].sampling for i in which]
    secret = keys((s.seed for s in settings), (s.choice for s in settings), (len(rows[i].token_ids) for i in which))
    return Draws(numbers, tops, np.array(which, np.int64), Truncation.of(settings, numbers.shape[1]), secret)


def _changed(logits: torch.Tensor, numbers: Floats, rows: Sequence[Row], which: list[int]) -> Iterator[Floats]:
    """The logits [vocab] of these requests with their adjustments; each is good until the next."""
    if not which:
        return
    changes = adjustments.gather(rows, logits.shape[1])
    arrays = (changes.index, changes.columns, changes.settings)
    values = adjustments.adjusted(logits, *(torch.from_numpy(array) for array in arrays)).numpy()
    scores = np.empty(logits.shape[1], np.float32)  # one for all stays in the caches
    for i in which:
        scores[:] = numbers[i]
        mine = slice(changes.starts[i], changes.starts[i + 1])
        scores[changes.index[mine] - i * logits.shape[1]] = values[mine]
        yield scores


def _winners(parts: Sequence[Contenders]) -> list[int]:
    """Of each draw the token with the largest score + noise."""
    if not parts:
        return []
    found = Contenders.joined(parts)
    scores = found.scores + gumbel_of(np.repeat(found.keys, found.counts), found.ids)
    bounds = pairwise(accumulate(found.counts.tolist(), initial=0))
    winners: list[int] = found.ids.take([begin + int(scores[begin:end].argmax()) for begin, end in bounds]).tolist()
    return winners


def _logprobs(row: Blocks, whole: float, count: int, token: int) -> Logprobs:
    """Log probabilities of the raw logits, before temperature, bias and penalties; lower ids first among equals."""
    ids = row.largest(min(count, len(row.logits)))
    values = row.logits[ids].astype(np.float64) - whole
    return Logprobs(float(row.logits[token]) - whole, list(zip(ids.tolist(), values.tolist(), strict=True)))
