"""Scorer: log probabilities of prompts, from the logits after each of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.request_state import Row
from services.engine.decoder import Decoder
from services.engine.sampling.candidates import Search
from services.engine.sampling.logits_chunks import maxima
from services.engine.sampling.sampler import Sampled

# Logits of prompt tokens that are there at once: 64 MiB in float32, on a GPU a few times that while they are scored.
# That is little beside weights and KV blocks, where a whole prompt could take more than both (32,768 tokens by a
# vocabulary of 151,936: 18 GiB). It is rows enough, 341 of a vocabulary of 49,152, that reading the vocabulary's
# weights once for each piece costs little beside multiplying by them.
AT_ONCE = 1 << 24


@dataclass(frozen=True, slots=True)
class Scored:
    """Some tokens, each after the one before it. Where `sound` is false the other numbers say nothing."""

    sound: npt.NDArray[np.bool_]  # [tokens], whether the largest logit is finite
    own: npt.NDArray[np.float64]  # [tokens], the token's log probability
    ranks: npt.NDArray[np.int64]  # [tokens], 1 + how many tokens are likelier
    ids: npt.NDArray[np.int64]  # [tokens, count], the likeliest tokens
    values: npt.NDArray[np.float64]  # [tokens, count], their log probabilities


class Scorer:
    """Fills `Row.scores` while prompts are computed, and hands them out with the first output token.

    Log probabilities are those of the raw logits, before temperature, bias and penalties.
    """

    def __init__(self, decoder: Decoder, vocab_size: int, search: Search) -> None:
        """`search` is for logits on a CPU."""
        self._decoder = decoder
        self._vocab_size = vocab_size
        self._search = search

    def score(self, batch: FlatBatch) -> None:
        """Score the tokens of prompts that the last forward, of `batch`, computed. Its logits are gone afterwards.

        All ranks must call this; only the one that samples learns anything.
        """
        asked = max(row.sampling.prompt_logprobs or 0 for row, _ in batch.scoring)
        pieces = list(self._pieces(batch, min(asked, self._vocab_size)))
        if not pieces:
            return
        sound, own, ranks, ids, values = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        end = 0
        for row, count in batch.scoring:
            begin, end = end, end + count
            part = slice(begin, end)
            _extend(row, Scored(sound[part], own[part], ranks[part], ids[part], values[part]))

    def hand_out(self, batch: FlatBatch, result: Sampled) -> None:
        """Put the scores of prompts that are complete beside the log probabilities of their first tokens.

        A prompt whose logits are not finite fails now and not when that was found: between iterations ranks agree on
        who has failed only where a token was sampled.
        """
        complete = {row.id for row in batch.sampling}
        for row, _ in batch.scoring:
            if row.id not in complete:
                continue
            scores, row.scores = row.scores, None
            assert scores is not None
            if row.id in result.tokens and scores.failed is None:
                result.logprobs[row.id] = replace(result.logprobs[row.id], prompt=scores.told)
            elif row.id in result.tokens:
                del result.tokens[row.id], result.logprobs[row.id]
                result.failed[row.id] = scores.failed or ""

    def _pieces(self, batch: FlatBatch, count: int) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """The fields of `Scored`, for no more than `AT_ONCE` logits at a time."""
        rows = max(1, AT_ONCE // self._vocab_size)
        for begin in range(0, len(batch.scored), rows):
            logits = self._decoder.logits_after(batch.scored[begin : begin + rows])
            if logits is None:
                continue
            targets = batch.targets[begin : begin + rows]
            on_cpu = logits.device.type == "cpu"
            one = on_a_cpu(logits, targets, count, self._search) if on_cpu else on_a_device(logits, targets, count)
            yield one.sound, one.own, one.ranks, one.ids, one.values


def on_a_cpu(logits: torch.Tensor, targets: Numbers, count: int, search: Search) -> Scored:
    """Scores of `targets` [tokens] by `logits` [tokens, vocab], with the `count` likeliest tokens of each. The
    arithmetic is that of output tokens, see `lone_choice`."""
    tops = maxima(logits).float().contiguous().numpy()
    numbers = logits.float().contiguous().numpy()
    sound = np.isfinite(tops.max(axis=1))
    where = np.flatnonzero(sound)
    own, ranks = np.full(len(targets), np.nan), np.zeros(len(targets), np.int64)
    ids, values = np.zeros((len(targets), count), np.int64), np.full((len(targets), count), np.nan)
    if len(where):
        wholes = search.log_sums(numbers, tops, where)
        logit = numbers[where, targets[where]]
        own[where] = logit - wholes
        ranks[where] = [1 + np.count_nonzero(numbers[i] > one) for i, one in zip(where, logit, strict=True)]
        ids[where] = search.likeliest(numbers, tops, where, count)
        values[where] = numbers[where[:, None], ids[where]] - wholes[:, None]
    return Scored(sound, own, ranks, ids, values)


def on_a_device(logits: torch.Tensor, targets: Numbers, count: int) -> Scored:
    """The same, on an accelerator; the host waits once."""
    raw = logits.float()
    mine = torch.from_numpy(targets).to(raw.device, torch.long)[:, None]
    logs = raw.log_softmax(dim=-1)
    ranks = 1 + (raw > raw.gather(1, mine)).sum(dim=-1, keepdim=True)
    values, ids = logs.topk(count)
    floats = torch.cat([raw.amax(dim=-1, keepdim=True), logs.gather(1, mine), values], dim=1)
    told = torch.cat([floats.double().view(torch.int64), ranks, ids], dim=1).cpu().numpy()
    numbers, whole = np.ascontiguousarray(told[:, : count + 2]).view(np.float64), told[:, count + 2 :]
    return Scored(np.isfinite(numbers[:, 0]), numbers[:, 1], whole[:, 0], whole[:, 1:], numbers[:, 2:])


def _extend(row: Row, scored: Scored) -> None:
    """Add the next tokens of the row's prompt."""
    assert row.scores is not None
    told, count = row.scores.told, row.sampling.prompt_logprobs or 0
    if row.scores.failed is None and not scored.sound.all():
        position = 1 + len(told.tokens) + int(scored.sound.argmin())
        row.scores.failed = f"the model's logits at position {position} are not finite"
    told.tokens.extend(scored.own.tolist())
    told.ranks.extend(scored.ranks.tolist())
    told.top_ids.extend(scored.ids[:, :count].ravel().tolist())
    told.top_logprobs.extend(scored.values[:, :count].ravel().tolist())
