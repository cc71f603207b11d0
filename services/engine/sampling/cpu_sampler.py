"""Choosing tokens on a CPU: one pass over all logits, then each request among its own few largest ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby, pairwise

import numpy as np
import torch

from services.engine.batch.request_state import Row
from services.engine.sampling import adjustments
from services.engine.sampling.allowed import only_allowed
from services.engine.sampling.candidates import Draws, Search
from services.engine.sampling.logits_chunks import Floats, Ids, maxima
from services.engine.sampling.noise import gumbel_of, keys
from services.engine.sampling.output import Choice, is_plain
from services.engine.sampling.truncation import Truncation
from services.messages import Logprobs


def choose(logits: torch.Tensor, rows: Sequence[Row], search: Search) -> Choice:
    """A token for each row of `logits` [requests, vocab], in any dtype. Requests have their adjustments."""
    tops = maxima(logits).float().contiguous().numpy()
    sound: list[bool] = np.isfinite(tops.max(axis=1)).tolist()
    choice = Choice([0] * len(rows), sound, [True] * len(rows), {})
    _choose_likeliest(choice, logits, tops, [i for i, row in enumerate(rows) if is_plain(row)])
    special = [i for i, row in enumerate(rows) if sound[i] and not is_plain(row)]
    asking = [i for i, row in enumerate(rows) if sound[i] and row.sampling.logprobs is not None]
    if not special and not asking:
        return choice
    numbers = logits.float().contiguous().numpy()
    if special:
        with _adjusted(numbers, tops, rows, special) as changed:
            _choose_special(choice, numbers, changed, rows, [i for i in special if not rows[i].allowed], search)
            _choose_allowed(choice, numbers, rows, special, search)
    if asking:
        _add_logprobs(choice, numbers, tops, rows, np.array(asking), search)
    return choice


def _choose_likeliest(choice: Choice, logits: torch.Tensor, tops: Floats, which: list[int]) -> None:
    """The id with the largest logit of each of these rows, the lowest if several are equal."""
    if not which:
        return
    best = tops[which].argmax(axis=1)
    blocks = logits.unflatten(1, (tops.shape[1], -1))
    inside = blocks[torch.tensor(which), torch.from_numpy(best)].argmax(dim=-1)
    for i, token in zip(which, (best * blocks.shape[2] + inside.numpy()).tolist(), strict=True):
        choice.tokens[i] = token


@contextmanager
def _adjusted(numbers: Floats, tops: Floats, rows: Sequence[Row], special: list[int]) -> Iterator[Floats]:
    """While it lasts, `numbers` are the logits with the adjustments of these requests. Gives the blocks' maxima."""
    changed = [i for i in special if rows[i].adjustments]
    if not changed:
        yield tops
        return
    changes = adjustments.gather(rows, numbers.shape[1])
    logits = torch.from_numpy(numbers)
    values = adjustments.adjusted(logits, *map(torch.from_numpy, (changes.index, changes.columns, changes.settings)))
    flat = numbers.reshape(-1)
    raw = flat[changes.index]
    try:
        flat[changes.index] = values.numpy()
        tops = tops.copy()
        for begin, end in _neighbours(changed):
            tops[begin:end] = maxima(logits[begin:end]).numpy()
        yield tops
    finally:
        flat[changes.index] = raw


def _neighbours(which: list[int]) -> Iterator[tuple[int, int]]:
    """Where each run of numbers that follow each other begins and ends."""
    for _, run in groupby(enumerate(which), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield numbers[0], numbers[-1] + 1


def _choose_special(
    choice: Choice, numbers: Floats, tops: Floats, rows: Sequence[Row], special: list[int], search: Search
) -> None:
    """The tokens of those that are drawn, have adjustments or allowed tokens, and whether there are any."""
    for i, best in zip(special, tops.max(axis=1)[special].tolist(), strict=True):
        choice.possible[i] = best > -math.inf
    _choose_likeliest(
        choice, torch.from_numpy(numbers), tops, [i for i in special if rows[i].sampling.temperature <= 0.0]
    )
    drawn = [i for i in special if rows[i].sampling.temperature > 0.0 and choice.possible[i]]
    if drawn:
        for i, token in zip(
            drawn, _drawn(numbers, tops, [rows[i] for i in drawn], np.array(drawn), search), strict=True
        ):
            choice.tokens[i] = token


def _choose_allowed(choice: Choice, numbers: Floats, rows: Sequence[Row], special: list[int], search: Search) -> None:
    """The same for those that have allowed tokens, among these."""
    which = [(i, allowed) for i in special if (allowed := rows[i].allowed)]
    if not which:
        return
    limited = Choice([0] * len(which), [True] * len(which), [True] * len(which), {})
    own = [rows[i] for i, _ in which]
    _choose_special(limited, *only_allowed(numbers, which), own, list(range(len(which))), search)
    for place, (i, _) in enumerate(which):
        choice.tokens[i], choice.possible[i] = limited.tokens[place], limited.possible[place]


def _drawn(numbers: Floats, tops: Floats, rows: Sequence[Row], which: Ids, search: Search) -> list[int]:
    """Of each draw the token with the largest score + noise."""
    settings = [row.sampling for row in rows]
    secret = keys((s.seed for s in settings), (s.choice for s in settings), (len(row.token_ids) for row in rows))
    found = search.contenders(Draws(numbers, tops, which, Truncation.of(settings, numbers.shape[1]), secret))
    scores = found.scores + gumbel_of(np.repeat(secret, found.counts), found.ids)
    bounds = pairwise(accumulate(found.counts.tolist(), initial=0))
    winners: list[int] = found.ids.take([begin + int(scores[begin:end].argmax()) for begin, end in bounds]).tolist()
    return winners


def _add_logprobs(
    choice: Choice, numbers: Floats, tops: Floats, rows: Sequence[Row], asking: Ids, search: Search
) -> None:
    """Log probabilities of the raw logits, before temperature, bias and penalties; lower ids first among equals."""
    wholes = search.log_sums(numbers, tops, asking)
    counts = [min(rows[i].sampling.logprobs or 0, numbers.shape[1]) for i in asking]
    ids = search.likeliest(numbers, tops, asking, max(counts))
    values = numbers[asking[:, None], ids] - wholes[:, None]
    own = numbers[asking, [choice.tokens[i] for i in asking]] - wholes
    for n, (i, count) in enumerate(zip(asking.tolist(), counts, strict=True)):
        top = list(zip(ids[n, :count].tolist(), values[n, :count].tolist(), strict=True))
        choice.logprobs[i] = Logprobs(float(own[n]), top)
