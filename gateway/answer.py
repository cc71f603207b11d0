"""The answer to one request: its choices, and the JSON of what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.choice import Choice, Piece
from gateway.echo import Echo, prompt_logprobs
from gateway.errors import ApiError, Kind
from gateway.logprobs import CompletionLogprobs, chat_logprobs
from gateway.model import ServedModel
from gateway.plan import Plan
from services.messages import TokenEvent


class Answer:
    """Made of what the pool holds: the plan of a request, its id, and the events of its sequences.

    `said` counts, for each choice, the events that the client has had already; none where it is empty.
    `error` is there once a choice has failed: nothing more is taken then.
    """

    def __init__(self, plan: Plan, model: ServedModel, request: str, said: Sequence[int] = ()) -> None:
        eos = frozenset() if plan.ignore_eos else model.info.eos_token_ids
        stop_ids, tables = eos.union(plan.stop_token_ids), model.tokenizer.tables.of(plan.skip_special_tokens)
        sent = [*said, *[0] * (plan.choices - len(said))]
        self.plan = plan
        self.request = request
        self.model = model
        self.choices = [
            Choice(i, tables, plan.stop, stop_ids, sent[i], plan.include_stop, plan.silent) for i in range(plan.choices)
        ]
        self.error: ApiError | None = None
        self._by_id = {f"{request}/{choice.index}": choice for choice in self.choices}
        echoes = [Echo(model.tokenizer, plan.prompts[i], given) for i, given in enumerate(plan.texts)]
        self._echoes = [echoes[choice.index // plan.n] for choice in self.choices] if plan.echo else []
        offsets = [len(echo.text) for echo in self._echoes] or [0] * plan.choices
        self._completion_logprobs = [CompletionLogprobs(model.tokenizer, tables, offset) for offset in offsets]

    @property
    def ended(self) -> bool:
        """Every choice has ended well."""
        return all(choice.ended for choice in self.choices)

    def add(self, events: list[TokenEvent]) -> list[Choice]:
        """Take events, up to the first that fails a choice; returns the choices that may have something to say."""
        touched: dict[int, Choice] = {}
        for event in events:
            if self.error is not None:
                break
            choice = self._by_id[event.id]
            choice.add(event)
            self.error = choice.error or self._beyond(choice)
            if event.index >= choice.sent:
                touched[choice.index] = choice
            elif event.token is not None:
                self._completion_logprobs[choice.index].skip(event.token)
        return list(touched.values())

    def _beyond(self, choice: Choice) -> ApiError | None:
        """The error of a choice that ended before the place where its client says it stands."""
        usage = choice is self.choices[-1]  # it counts as one more event of this choice
        if not choice.ended or choice.sent <= choice.added + usage:
            return None
        text = f"'Last-Event-ID' counts {choice.sent} events of choice {choice.index}, there are {choice.added}."
        return ApiError(Kind.INVALID, text, "Last-Event-ID")

    def usage(self) -> dict[str, Any]:
        """Each prompt counts once. Of its choices, the first says how much of it was cached: that is what it would have
        been for one choice, the others find what the first computed."""
        prompt, completion = self.plan.prompt_tokens, sum(c.completion_tokens for c in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in self.choices[:: self.plan.n])},
        }

    def usage_so_far(self, choice: Choice) -> dict[str, int]:
        """Of one choice, with the pieces that were taken of it, as vLLM counts it for `continuous_usage_stats`."""
        prompt, completion = self.plan.prompt_tokens, min(choice.sent, choice.completion_tokens)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def logprobs(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        if not self.plan.with_logprobs:
            return None
        if self.plan.chat:
            return chat_logprobs(self.model.tokenizer, piece)
        said = self._completion_logprobs[choice.index].of(piece)
        if piece.first and self._echoes:
            assert choice.prompt_logprobs is not None, f"choice {choice.index} has a prompt without log probabilities"
            before = self._echoes[choice.index].logprobs(choice.prompt_logprobs, self.plan.logprobs)
            said = {name: before[name] + values for name, values in said.items()}
        return said

    def text(self, choice: Choice, piece: Piece) -> str:
        """What the piece says, behind the prompt where that is wanted and the piece is the choice's first."""
        return self._echoes[choice.index].text + piece.text if piece.first and self._echoes else piece.text

    def body(self) -> bytes:
        """The whole answer, once `ended`."""
        chat, with_ids = self.plan.chat, self.plan.return_token_ids
        body: dict[str, Any] = {
            "id": self.request,
            "object": "chat.completion" if chat else "text_completion",
            "created": self.plan.created,
            "model": self.model.name,
            "choices": [self._choice(choice) for choice in self.choices],
            "usage": self.usage(),
        }
        if self.plan.service_tier is not None:
            body["service_tier"] = self.plan.service_tier
        if chat and with_ids:
            body["prompt_token_ids"] = self.plan.prompt_of(0)
        if chat and self.plan.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs(self.choices[0], self.plan.prompt_logprobs)
        return orjson.dumps(body)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        piece = choice.take()
        assert piece is not None, f"choice {choice.index} has not ended"
        said: dict[str, Any] = {"index": choice.index}
        if self.plan.chat:
            said["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
        else:
            said["text"] = self.text(choice, piece)
        said["logprobs"] = self.logprobs(choice, piece)
        said["finish_reason"] = piece.finish_reason
        if self.plan.return_token_ids:
            said["token_ids"] = piece.tokens
            if not self.plan.chat:
                said["prompt_token_ids"] = self.plan.prompt_of(choice.index)
        if self.plan.prompt_logprobs is not None and not self.plan.chat:
            said["prompt_logprobs"] = self._prompt_logprobs(choice, self.plan.prompt_logprobs)
        return said

    def _prompt_logprobs(self, choice: Choice, count: int) -> list[dict[str, Any] | None]:
        assert choice.prompt_logprobs is not None, f"choice {choice.index} has a prompt without log probabilities"
        prompt = self.plan.prompt_of(choice.index)
        return prompt_logprobs(self.model.tokenizer, prompt, choice.prompt_logprobs, count)
