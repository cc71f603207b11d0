"""What a request's settings change in its logits: bias, min_tokens, bad words, penalties, allowed tokens.

Both samplers use this file. A setting that changes the logits of single tokens is a column of `Adjustments`, a
condition of `needed` and a line of `adjusted`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from services.engine.batch.buffers import send
from services.requests import SamplingParams

COLUMNS = 5
BIAS, END, SEEN, COUNT, BANNED = range(COLUMNS)

NEUTRAL = (0.0, 1.0, 0.0, 0.0)  # the settings of a request without adjustments, see Changes


class Adjustments:
    """The tokens of one request whose logits change. Columns: its bias, whether the token ends the request, whether the
    request has it (repetition penalty), how often its output has it (presence and frequency penalties), whether it
    would complete a bad word.

    The table grows with the request, so that an iteration looks at new tokens only.
    """

    __slots__ = (
        "_bad_words",
        "_columns",
        "_completing",
        "_ids",
        "_places",
        "_sampling",
        "_seen",
        "settings",
    )

    def __init__(self, sampling: SamplingParams, eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._sampling = sampling
        self._places: dict[int, int] = {}
        self._ids = np.zeros(16, np.int64)
        self._columns = np.zeros((COLUMNS, 16), np.float32)
        self._seen = 0  # how many tokens of the request are in the table
        self.settings = NEUTRAL  # see Changes
        self._bad_words = BadWords(sampling.bad_words) if sampling.bad_words else None
        self._completing: set[int] = set()  # tokens that are banned because of the output so far
        for id, bias in sampling.logit_bias.items():
            self._add(id, BIAS, bias)
        if sampling.min_tokens:
            # with ignore_eos an EOS does not end the request, so it is not held back
            for id in {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}:
                if 0 <= id < vocab_size:
                    self._add(id, END, 1.0)
        for id in self._bad_words.single if self._bad_words else ():
            self._add(id, BANNED, 1.0)

    def copy(self) -> Adjustments:
        """A table that changes by itself from now on."""
        other = copy(self)
        other._places, other._completing = dict(self._places), set(self._completing)
        other._ids, other._columns = self._ids.copy(), self._columns.copy()
        return other

    @staticmethod
    def needed(s: SamplingParams, num_output_tokens: int) -> bool:
        """Whether a request with these settings needs them for its next token."""
        penalties = s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0
        return bool(penalties or s.logit_bias or s.bad_words or num_output_tokens < s.min_tokens)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[ids]: distinct, unordered."""
        return self._ids[: len(self._places)]

    @property
    def columns(self) -> npt.NDArray[np.float32]:
        """[COLUMNS, ids]"""
        return self._columns[:, : len(self._places)]

    def update(self, token_ids: list[int], num_prompt_tokens: int, unknown: int = 0) -> None:
        """Add the tokens that came since the last call. `token_ids` are prompt + output, without the last `unknown`
        ones, which may change nothing but their number."""
        s, num_output_tokens = self._sampling, len(token_ids) + unknown - num_prompt_tokens
        held_back = float(num_output_tokens < s.min_tokens)
        self.settings = held_back, s.repetition_penalty, s.presence_penalty, s.frequency_penalty
        if s.repetition_penalty != 1.0:
            for id in dict.fromkeys(token_ids[self._seen :]):
                self._add(id, SEEN, 1.0)
        if s.presence_penalty or s.frequency_penalty:
            for id in token_ids[max(self._seen, num_prompt_tokens) :]:
                self._add(id, COUNT, 1.0)
        self._seen = len(token_ids)
        if self._bad_words:
            for id in self._completing:
                self._add(id, BANNED, -1.0)
            self._completing = self._bad_words.completing(token_ids, num_prompt_tokens)
            for id in self._completing:
                self._add(id, BANNED, 1.0)

    def _add(self, id: int, column: int, value: float) -> None:
        place = self._places.setdefault(id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._ids[place] = id
        self._columns[column, place] += value


class BadWords:
    """Words, as token ids, that the output must not contain. A word of one token is never sampled. The last token of a
    longer word is not sampled where the output ends with the others (vLLM's `bad_words`). The prompt does not count.
    """

    __slots__ = ("_by_last", "single")

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self.single: set[int] = set()
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}  # last but one token -> (beginning, last token)
        for *beginning, last in words:
            if beginning:
                self._by_last.setdefault(beginning[-1], []).append((beginning, last))
            else:
                self.single.add(last)

    def completing(self, token_ids: list[int], num_prompt_tokens: int) -> set[int]:
        """The tokens that would complete a word. `token_ids` are prompt + output."""
        found = self._by_last.get(token_ids[-1], ()) if len(token_ids) > num_prompt_tokens else ()
        return {
            last
            for beginning, last in found
            if len(token_ids) - len(beginning) >= num_prompt_tokens and token_ids[-len(beginning) :] == beginning
        }


@dataclass(frozen=True, slots=True)
class Changes:
    """The adjustments of several requests as arrays."""

    index: npt.NDArray[np.int64]  # [changes], into the logits [requests, vocab] as one axis; ordered by request
    columns: npt.NDArray[np.float32]  # [COLUMNS, changes]
    settings: npt.NDArray[np.float32]  # [4, requests]: are ends held back; repetition, presence, frequency penalty


def gather(tables: Sequence[Adjustments | None], vocab_size: int) -> Changes:
    """The changes of the logits of requests with these adjustments."""
    ids = [table.ids + i * vocab_size for i, table in enumerate(tables) if table]
    columns = [table.columns for table in tables if table]
    settings = [table.settings if table else NEUTRAL for table in tables]
    return Changes(
        np.concatenate([np.zeros(0, np.int64), *ids]),
        np.concatenate([np.zeros((COLUMNS, 0), np.float32), *columns], axis=1),
        np.array(settings, np.float32).reshape(-1, 4).T.copy(),
    )


def adjusted(logits: torch.Tensor, index: torch.Tensor, columns: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """The changed logits [changes], float32, of `logits` [requests, vocab]; the other arguments are those of Changes.

    Bias is added; held-back ends and bad words become impossible. The repetition penalty (Keskar et al., 2019) counts
    prompt and output: it divides positive logits of their tokens and multiplies negative ones. Presence and frequency
    penalties (OpenAI) count the output: the first is subtracted once for each token in it, the second for each
    occurrence. No logit becomes +infinity.
    """
    held_back, repetition, presence, frequency = settings.index_select(1, index // logits.shape[1])
    bias, end, seen, count, banned = columns
    scores: torch.Tensor = logits.reshape(-1).index_select(0, index).float() + bias
    scores.masked_fill_(end * held_back + banned > 0, -torch.inf)
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(seen > 0, repeated, scores)
    scores = scores - (presence * count.clamp(max=1.0) + frequency * count)
    return scores.clamp_(max=torch.finfo(torch.float32).max)


class AllowedTokens:
    """The only tokens that may be sampled for a request. What does not change between iterations is computed once."""

    __slots__ = ("_forbidden", "_vocab_size", "ids")

    def __init__(self, ids: Iterable[int], vocab_size: int) -> None:
        self.ids = np.unique(np.array(list(ids), np.int64))  # ascending
        self._vocab_size = vocab_size
        self._forbidden: torch.Tensor | None = None

    def forbidden(self, device: torch.device) -> torch.Tensor:
        """[vocab], bool: true for all other tokens. It stays on the device."""
        if self._forbidden is None:
            (ids,) = send([self.ids], device)
            self._forbidden = torch.ones(self._vocab_size, dtype=torch.bool, device=device).index_fill_(0, ids, False)
        return self._forbidden
