"""Log probabilities of output and prompt in OpenAI's two formats and vLLM's, and the echoed prompt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from gateway.schemas.answers import ChatLogprobs, PromptLogprob, ScoredPrompt, TokenLogprob, TopLogprob
from gateway.schemas.completions import CompletionLogprobs
from services.messages import Logprobs, PromptLogprobs
from services.text import TextTables, Tokenizer

LOWEST = -9999.0  # stands for minus infinity, which JSON does not have


def chat_logprobs(tokenizer: Tokenizer, tokens: list[int], logprobs: list[Logprobs]) -> ChatLogprobs:
    """The log probabilities of `tokens` in chat's format."""

    def entry(token: int, logprob: float) -> TopLogprob:
        data = tokenizer.literal_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": max(logprob, LOWEST), "bytes": list(data)}

    content: list[TokenLogprob] = [
        {**entry(token, own.token), "top_logprobs": [entry(*top) for top in own.top]}
        for token, own in zip(tokens, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


class ChoiceLogprobs:
    """The log probabilities of one choice in the format of completions, delta by delta.

    `text_offset` is the number of characters of the choice's text before the token. For a token that continues a
    character of several bytes it includes that character.
    """

    def __init__(self, tokenizer: Tokenizer, tables: TextTables, offset: int = 0) -> None:
        """`tables` hold the text of each token; the choice's text begins with `offset` characters of the prompt."""
        self._tokenizer = tokenizer
        self._tables = tables
        self._offset = offset

    def of(self, tokens: list[int], logprobs: list[Logprobs]) -> CompletionLogprobs:
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self.skip(token)
        return {
            "tokens": [token_name(self._tokenizer, token) for token in tokens],
            "token_logprobs": [max(own.token, LOWEST) for own in logprobs],
            "top_logprobs": [
                completion_entry(self._tokenizer, token, own.token, own.top)
                for token, own in zip(tokens, logprobs, strict=True)
            ],
            "text_offset": offsets,
        }

    def skip(self, token: int) -> None:
        """Skip a token that the client has received."""
        self._offset += characters(self._tables.bytes_of(token))


def completion_entry(
    tokenizer: Tokenizer, token: int, logprob: float, top: list[tuple[int, float]]
) -> dict[str, float]:
    """An entry of `top_logprobs`: the likeliest tokens and the token itself."""
    return {token_name(tokenizer, t): max(p, LOWEST) for t, p in [*top, (token, logprob)]}


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """The token as text, or in OpenAI's notation for bytes that are not text, so that no two tokens share a key."""
    data = tokenizer.literal_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def characters(data: bytes) -> int:
    """The number of characters that begin in `data`, which may be any part of valid UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


class Echo:
    """The prompt at the beginning of a completion (`echo`). `text` is the client's text, or the decoded token ids with
    special tokens spelled out."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], given: str = "") -> None:
        """`given`: the client's text; empty if it sent token ids."""
        self._tokenizer = tokenizer
        self._prompt = prompt
        self.text = given or tokenizer.decode(prompt, skip_special_tokens=False)

    def logprobs(self, scores: PromptLogprobs, count: int) -> CompletionLogprobs:
        """The log probabilities of the prompt in the format of completions, with the `count` likeliest tokens at each
        position. The first token has no context, so its log probabilities are null."""
        tops = [
            completion_entry(self._tokenizer, token, own, top[:count])
            for token, own, _, top in _entries(self._prompt, scores)
        ]
        return {
            "tokens": [token_name(self._tokenizer, token) for token in self._prompt],
            "token_logprobs": [None, *(max(own, LOWEST) for own in scores.tokens)],
            "top_logprobs": [None, *tops],
            "text_offset": self._offsets(),
        }

    def _offsets(self) -> list[int]:
        """The number of characters of the text before each token, without what the tokenizer added in front of the
        client's text (a BOS token, a space)."""
        pieces = [self._tokenizer.literal_bytes(token) for token in self._prompt]
        added = max(0, b"".join(pieces).decode(errors="replace").find(self.text))
        starts = accumulate(map(characters, pieces[:-1]), initial=0)
        return [max(0, start - added) for start in starts]


def _entries(prompt: list[int], scores: PromptLogprobs) -> Iterator[tuple[int, float, int, list[tuple[int, float]]]]:
    """For each token except the first: id, log probability, rank, likeliest tokens as (id, log probability)."""
    top = list(zip(scores.top_ids, scores.top_logprobs, strict=True))
    each = len(top) // max(1, len(scores.tokens))
    for i, (token, own, rank) in enumerate(zip(prompt[1:], scores.tokens, scores.ranks, strict=True)):
        yield token, own, rank, top[i * each : (i + 1) * each]


def prompt_logprobs(tokenizer: Tokenizer, prompt: list[int], scores: PromptLogprobs, count: int) -> ScoredPrompt:
    """vLLM's field: for each token, the token itself and the `count` likeliest tokens by id; null for the first."""

    def entry(token: int, logprob: float, rank: int) -> PromptLogprob:
        text = tokenizer.literal_bytes(token).decode(errors="replace")
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": text}

    made: ScoredPrompt = [None]
    for token, own, rank, top in _entries(prompt, scores):
        likeliest = {str(id): entry(id, logprob, place) for place, (id, logprob) in enumerate(top[:count], 1)}
        made.append(
            {str(token): entry(token, own, rank)} | {id: one for id, one in likeliest.items() if id != str(token)}
        )
    return made
