"""What an answer of one choice has said so far: a function of its token events, at whatever gateway they arrive."""

from __future__ import annotations

from typing import Any

from gateway.choice import Choice
from gateway.logprobs import chat_logprobs
from services.messages import End, TokenEvent
from services.requests import FinishReason
from services.text import Tokenizer

UNANSWERED = (FinishReason.CANCELLED, FinishReason.ERROR)


class Transcript:
    """Text and log probabilities of one answer. `said` counts its token events, of which the end is one."""

    def __init__(self, choice: Choice, tokenizer: Tokenizer, with_logprobs: bool) -> None:
        self._choice = choice
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self.said = 0
        self.text = ""
        self.logprobs: list[dict[str, Any]] = []
        self.end: End | None = None

    @property
    def tokens(self) -> int:
        return self._choice.completion_tokens

    def add(self, event: TokenEvent) -> None:
        """Take the next event. One that ends it without an answer leaves the text as it stands."""
        self.said = event.index + 1
        if event.end is not None:
            self.end = event.end
            if event.end.reason in UNANSWERED:
                return
        self._choice.add(event)

    def add_all(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.add(event)

    def take(self, silent: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """The text that became final since the last take and the log probabilities of its tokens.

        Tokens without text wait for the next one that has some, unless `silent` or the answer has ended.
        """
        piece = self._choice.take(silent or self.end is not None)
        if piece is None:
            return "", []
        logprobs = chat_logprobs(self._tokenizer, piece)["content"] if self._with_logprobs else []
        self.text += piece.text
        self.logprobs += logprobs
        return piece.text, logprobs
