"""Logit bias, ends held back, bad words, penalties: what changes the logits of single ids before a token is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from services.engine.bad_words import BadWords
from services.requests import SamplingParams

if TYPE_CHECKING:
    from services.engine.rows import Row

COLUMNS = 5  # of a table
BIAS, END, SEEN, COUNT, BANNED = range(COLUMNS)


class Adjustments:
    """Of one request: the ids that something is set for, and a column each of their bias, whether they end it, whether
    they were seen (for the repetition penalty), how often they are in its output (for presence and frequency), whether
    they would complete a bad word.

    They grow with the request, so that an iteration looks at its new tokens alone.
    """

    __slots__ = ("_bad_words", "_columns", "_completing", "_ids", "_places", "_presence", "_repetition", "_taken")

    def __init__(self, s: SamplingParams, eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.zeros(16, np.int64)
        self._columns = np.zeros((COLUMNS, 16), np.float32)
        self._taken = 0  # tokens of the request
        self._repetition = s.repetition_penalty != 1.0
        self._presence = s.presence_penalty != 0.0 or s.frequency_penalty != 0.0
        self._bad_words = BadWords(s.bad_words) if s.bad_words else None
        self._completing: set[int] = set()  # what may not come next because of the output so far
        for id, bias in s.logit_bias.items():
            self._add(id, BIAS, bias)
        if s.min_tokens:
            # with ignore_eos an EOS ends nothing, so nothing is to be kept from it
            for id in {*s.stop_token_ids, *(() if s.ignore_eos else eos_token_ids)}:
                if 0 <= id < vocab_size:
                    self._add(id, END, 1.0)
        for id in self._bad_words.single if self._bad_words else ():
            self._add(id, BANNED, 1.0)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[ids]: distinct, in no order."""
        return self._ids[: len(self._places)]

    @property
    def columns(self) -> npt.NDArray[np.float32]:
        """[COLUMNS, ids]"""
        return self._columns[:, : len(self._places)]

    def take(self, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Note the tokens that came since the last time; `token_ids` are prompt + output."""
        if self._repetition:
            for id in dict.fromkeys(token_ids[self._taken :]):
                self._add(id, SEEN, 1.0)
        if self._presence:
            for id in token_ids[max(self._taken, num_prompt_tokens) :]:
                self._add(id, COUNT, 1.0)
        self._taken = len(token_ids)
        if self._bad_words:
            for id in self._completing:
                self._add(id, BANNED, -1.0)
            self._completing = self._bad_words.completing(token_ids, num_prompt_tokens)
            for id in self._completing:
                self._add(id, BANNED, 1.0)

    def _add(self, id: int, column: int, value: float) -> None:
        """Add to what is noted of an id."""
        place = self._places.setdefault(id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._ids[place] = id
        self._columns[column, place] += value


@dataclass(frozen=True, slots=True)
class Changes:
    """The adjustments of a batch, as arrays."""

    index: npt.NDArray[
        np.int64
    ]  # [changes], into the logits [requests, vocab] as one axis; in the order of the requests
    columns: npt.NDArray[np.float32]  # [COLUMNS, changes]
    settings: npt.NDArray[np.float32]  # [4, requests]: whether ends are held back; repetition, presence, frequency


def gather(rows: Sequence[Row], vocab_size: int) -> Changes:
    """The changes of the logits of these requests. Each has its adjustments."""
    tables = [row.adjustments for row in rows]
    ids = [table.ids + i * vocab_size for i, table in enumerate(tables) if table]
    columns = [table.columns for table in tables if table]
    settings = [
        (row.num_output_tokens < s.min_tokens, s.repetition_penalty, s.presence_penalty, s.frequency_penalty)
        for row in rows
        for s in (row.sampling,)
    ]
    return Changes(
        np.concatenate([np.zeros(0, np.int64), *ids]),
        np.concatenate([np.zeros((COLUMNS, 0), np.float32), *columns], axis=1),
        np.array(settings, np.float32).reshape(-1, 4).T.copy(),
    )


def adjusted(logits: torch.Tensor, index: torch.Tensor, columns: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """The changed logits [changes], float32, of `logits` [requests, vocab]; the others are as in `Changes`.

    Bias is added, ends and bad words are ruled out. Repetition (Keskar et al., 2019) looks at prompt and output: logits
    of ids in them are divided by it if positive, multiplied if negative. Presence and frequency (OpenAI) look at the
    output: presence is taken off once for each id in it, frequency once for each occurrence. None becomes infinitely
    likely.
    """
    held_back, repetition, presence, frequency = settings.index_select(1, index // logits.shape[1])
    bias, end, seen, count, banned = columns
    scores: torch.Tensor = logits.reshape(-1).index_select(0, index).float() + bias
    scores.masked_fill_(end * held_back + banned > 0, -torch.inf)
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(seen > 0, repeated, scores)
    scores = scores - (presence * count.clamp(max=1.0) + frequency * count)
    return scores.clamp_(max=torch.finfo(torch.float32).max)
