"""The answer to one request as JSON: a whole body, or chunks built from parts made once."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.choice import Choice, Piece
from gateway.door import Ticket
from gateway.logprobs import CompletionLogprobs, chat_logprobs
from gateway.model import ServedModel
from services.messages import TokenEvent
from services.requests import SamplingParams


class Answer:
    """The choices of a request and the JSON of what they say; `request` and `created` as the pool has them."""

    def __init__(self, ticket: Ticket, model: ServedModel, request: str, created: int) -> None:
        sequences = ticket.submission.sequences
        self.ticket = ticket
        self.request = request
        self.created = created
        self.model = model
        self.choices = [_choice(i, model, s.sampling) for i, s in enumerate(sequences)]
        self._by_id = {f"{request}/{choice.index}": choice for choice in self.choices}
        self._with_logprobs = sequences[0].sampling.logprobs is not None
        self._completion_logprobs = [CompletionLogprobs(model.tokenizer) for _ in sequences]

    @property
    def ended(self) -> bool:
        return all(choice.ended for choice in self.choices)

    def add(self, events: list[TokenEvent]) -> list[Choice]:
        """Take events; returns the choices they belong to. Raises ApiError when a choice failed."""
        touched: dict[int, Choice] = {}
        for event in events:
            choice = self._by_id[event.id]
            choice.add(event)
            touched[choice.index] = choice
        return list(touched.values())

    def usage(self) -> dict[str, int]:
        prompt, completion = self.ticket.prompt_tokens, sum(c.completion_tokens for c in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def logprobs(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        if self.ticket.chat:
            return chat_logprobs(self.model.tokenizer, piece)
        return self._completion_logprobs[choice.index].of(piece)

    def prompt_of(self, choice: Choice) -> list[int]:
        return self.ticket.submission.sequences[choice.index].prompt

    def body(self) -> bytes:
        """The whole answer, once `ended`."""
        chat, with_ids = self.ticket.chat, self.ticket.return_token_ids
        body: dict[str, Any] = {
            "id": self.request,
            "object": "chat.completion" if chat else "text_completion",
            "created": self.created,
            "model": self.model.name,
            "choices": [self._choice(choice) for choice in self.choices],
            "usage": self.usage(),
        }
        if chat and with_ids:
            body["prompt_token_ids"] = self.prompt_of(self.choices[0])
        return orjson.dumps(body)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        piece = choice.take()
        assert piece is not None, f"choice {choice.index} has not ended"
        said: dict[str, Any] = {"index": choice.index}
        if self.ticket.chat:
            said["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
        else:
            said["text"] = piece.text
        said["logprobs"] = self.logprobs(choice, piece)
        said["finish_reason"] = piece.finish_reason
        if self.ticket.return_token_ids:
            said["token_ids"] = piece.tokens
            if not self.ticket.chat:
                said["prompt_token_ids"] = self.prompt_of(choice)
        return said


def _choice(index: int, model: ServedModel, sampling: SamplingParams) -> Choice:
    eos = frozenset() if sampling.ignore_eos else model.info.eos_token_ids
    return Choice(index, model.tokenizer.tables, sampling.stop, eos.union(sampling.stop_token_ids))
