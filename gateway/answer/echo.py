"""The prompt in an answer: its text and tokens before those of a completion, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from gateway.answer.logprobs import LOWEST, characters, completion_entry, token_name
from services.messages import PromptLogprobs
from services.text import Tokenizer


class Echo:
    """The beginning of completions that echo their prompt: `text` is as the client wrote it, or, of token ids, what
    these say, with special tokens by their names."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], given: str = "") -> None:
        """`given` is empty where the client gave token ids."""
        self._tokenizer = tokenizer
        self._prompt = prompt
        self.text = given or tokenizer.decode(prompt, skip_special_tokens=False)

    def logprobs(self, scores: PromptLogprobs, count: int) -> dict[str, list[Any]]:
        """`{tokens, token_logprobs, top_logprobs, text_offset}` with the `count` likeliest tokens of each. The first
        token follows nothing: its log probabilities are null."""
        tops = [
            completion_entry(self._tokenizer, token, own, top[:count])
            for token, own, _, top in entries(self._prompt, scores)
        ]
        return {
            "tokens": [token_name(self._tokenizer, token) for token in self._prompt],
            "token_logprobs": [None, *(max(own, LOWEST) for own in scores.tokens)],
            "top_logprobs": [None, *tops],
            "text_offset": self._offsets(),
        }

    def _offsets(self) -> list[int]:
        """Characters of the text before each token. What the tokenizer put before the client's text, a BOS or a space,
        is not in it."""
        pieces = [self._tokenizer.literal_bytes(token) for token in self._prompt]
        added = max(0, b"".join(pieces).decode(errors="replace").find(self.text))
        starts = accumulate(map(characters, pieces[:-1]), initial=0)
        return [max(0, start - added) for start in starts]


def entries(prompt: list[int], scores: PromptLogprobs) -> Iterator[tuple[int, float, int, list[tuple[int, float]]]]:
    """Of each token but the first: id, log probability, rank, and the likeliest tokens as (id, log probability)."""
    top = list(zip(scores.top_ids, scores.top_logprobs, strict=True))
    each = len(top) // max(1, len(scores.tokens))
    for i, (token, own, rank) in enumerate(zip(prompt[1:], scores.tokens, scores.ranks, strict=True)):
        yield token, own, rank, top[i * each : (i + 1) * each]


def prompt_logprobs(
    tokenizer: Tokenizer, prompt: list[int], scores: PromptLogprobs, count: int
) -> list[dict[str, Any] | None]:
    """vLLM's field: for each token the token itself and the `count` likeliest, by id; null for the first."""

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = tokenizer.literal_bytes(token).decode(errors="replace")
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": text}

    said: list[dict[str, Any] | None] = [None]
    for token, own, rank, top in entries(prompt, scores):
        likeliest = {str(id): entry(id, logprob, place) for place, (id, logprob) in enumerate(top[:count], 1)}
        said.append(
            {str(token): entry(token, own, rank)} | {id: one for id, one in likeliest.items() if id != str(token)}
        )
    return said
