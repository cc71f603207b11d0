"""Log probabilities in OpenAI's two formats."""

from __future__ import annotations

from typing import Any

from gateway.answer.choice import Piece
from services.text import TextTables, Tokenizer

LOWEST = -9999.0  # stands for minus infinity, which JSON does not have


def chat_logprobs(tokenizer: Tokenizer, piece: Piece) -> dict[str, Any]:
    """`{content: [{token, logprob, bytes, top_logprobs}], refusal}`."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.literal_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": max(logprob, LOWEST), "bytes": list(data)}

    content = [
        {**entry(token, logprobs.token), "top_logprobs": [entry(*top) for top in logprobs.top]}
        for token, logprobs in zip(piece.tokens, piece.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`{tokens, token_logprobs, top_logprobs, text_offset}` of one choice, piece by piece.

    `text_offset` counts characters of the choice's text before the token; a token that goes on with a character
    has the offset behind it.
    """

    def __init__(self, tokenizer: Tokenizer, tables: TextTables, offset: int = 0) -> None:
        """`tables` are those of the choice's text, which begins with `offset` characters of the prompt."""
        self._tokenizer = tokenizer
        self._tables = tables
        self._offset = offset

    def of(self, piece: Piece) -> dict[str, Any]:
        offsets = []
        for token in piece.tokens:
            offsets.append(self._offset)
            self.skip(token)
        return {
            "tokens": [token_name(self._tokenizer, token) for token in piece.tokens],
            "token_logprobs": [max(logprobs.token, LOWEST) for logprobs in piece.logprobs],
            "top_logprobs": [
                completion_entry(self._tokenizer, token, logprobs.token, logprobs.top)
                for token, logprobs in zip(piece.tokens, piece.logprobs, strict=True)
            ],
            "text_offset": offsets,
        }

    def skip(self, token: int) -> None:
        """Go on behind a token that was said before."""
        self._offset += characters(self._tables.bytes_of(token))


def completion_entry(
    tokenizer: Tokenizer, token: int, logprob: float, top: list[tuple[int, float]]
) -> dict[str, float]:
    """What `top_logprobs` says of one token: the likeliest ones and itself."""
    return {token_name(tokenizer, t): max(p, LOWEST) for t, p in [*top, (token, logprob)]}


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """The token as text, or as OpenAI writes bytes that are none: two tokens must not share a key."""
    data = tokenizer.literal_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def characters(data: bytes) -> int:
    """Characters that begin in `data`, which may be any part of valid UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in data)
