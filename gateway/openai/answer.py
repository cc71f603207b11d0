"""The answer to a completion or chat completion: its choices and their JSON.

Reasoning has two names in an answer: `reasoning_content`, which most clients read, and `reasoning`, vLLM's newer name.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import cast

import orjson

from gateway.answer.choice import Choice, Delta, call_id, choices_of, tables_of
from gateway.answer.logprobs import ChoiceLogprobs, Echo, chat_logprobs, prompt_logprobs
from gateway.answer.parts import Part, PartKind
from gateway.answer.plan import Plan
from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from gateway.schemas.answers import ChatLogprobs, ScoredPrompt, Usage
from gateway.schemas.chat import (
    AnswerCall,
    AnswerCustomCall,
    CallDelta,
    ChatAnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatDelta,
    CustomCallDelta,
    Served,
)
from gateway.schemas.completions import Completion, CompletionChoice, CompletionLogprobs
from services.messages import TokenEvent

CALL_PREFIX = "call_"
_ID = attrgetter("id")


class Answer:
    """A function of what the pool keeps: the plan of a request, its id and the events of its sequences.

    `sent`: the number of events of each choice that the client has received; empty means none.
    `error` is set when a choice fails; no event is taken after that.
    """

    def __init__(self, plan: Plan, model: ServedModel, request: str, sent: tuple[int, ...] = ()) -> None:
        self.plan = plan
        self.request = request
        self.model = model
        self.choices = choices_of(plan, model, sent)
        self.error: ApiError | None = None
        self._num_ended = 0  # choices
        self._by_id = {f"{request}/{choice.index}": choice for choice in self.choices}
        echoes = [Echo(model.tokenizer, plan.prompts[i], given) for i, given in enumerate(plan.texts)]
        self._echoes = [echoes[choice.index // plan.n] for choice in self.choices] if plan.echo else []
        offsets = [len(echo.text) for echo in self._echoes] or [0] * plan.choices
        tables = tables_of(plan, model)
        self._completion_logprobs = [ChoiceLogprobs(model.tokenizer, tables, offset) for offset in offsets]

    @property
    def ended(self) -> bool:
        """Whether every choice has ended with an answer."""
        return self._num_ended == len(self.choices)

    def add(self, events: list[TokenEvent]) -> list[Choice]:
        """Take events up to the first one that fails a choice. Returns the choices that may have a delta."""
        touched: dict[int, Choice] = {}
        for id, group in groupby(events, _ID):
            if self.error is not None:
                break
            choice, run = self._by_id[id], list(group)
            received = max(0, min(len(run), choice.sent - run[0].index))  # number of these that the client has
            for event in run[:received]:
                choice.add(event)
                if event.token is not None:
                    self._completion_logprobs[choice.index].skip(event.token)
            if received < len(run):
                choice.add_all(run[received:] if received else run)
                touched[choice.index] = choice
            if choice.ended:  # only its last event ends it
                self._num_ended += 1
            self.error = choice.error or self._position_error(choice)
        return list(touched.values())

    def _position_error(self, choice: Choice) -> ApiError | None:
        """The error of a choice that ended before the position that the client gave."""
        usage = choice is self.choices[-1]  # it counts as one more event of this choice
        if not choice.ended or choice.sent <= choice.added + usage:
            return None
        text = f"'Last-Event-ID' counts {choice.sent} events of choice {choice.index}, there are {choice.added}."
        return ApiError(Kind.INVALID, text, "Last-Event-ID")

    def usage(self) -> Usage:
        """Each prompt counts once. Its cached tokens are those of its first choice, as if `n` were 1: the other choices
        find what the first one computed."""
        prompt, completion = self.plan.prompt_tokens, sum(c.completion_tokens for c in self.choices)
        usage: Usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in self.choices[:: self.plan.n])},
        }
        if self.plan.reasoning_parser:
            reasoning = sum(c.reasoning_tokens for c in self.choices)
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage

    def usage_so_far(self, choice: Choice) -> Usage:
        """The usage up to the last delta of one choice, as vLLM counts it for `continuous_usage_stats`."""
        prompt, completion = self.plan.prompt_tokens, min(choice.sent, choice.completion_tokens)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def logprobs(self, choice: Choice, delta: Delta) -> ChatLogprobs | CompletionLogprobs | None:
        """The log probabilities of a delta in the format of its API; None unless requested."""
        return self._chat_logprobs(delta) if self.plan.chat else self._text_logprobs(choice, delta)

    def _chat_logprobs(self, delta: Delta) -> ChatLogprobs | None:
        return chat_logprobs(self.model.tokenizer, delta.tokens, delta.logprobs) if self.plan.with_logprobs else None

    def _text_logprobs(self, choice: Choice, delta: Delta) -> CompletionLogprobs | None:
        if not self.plan.with_logprobs:
            return None
        made = self._completion_logprobs[choice.index].of(delta.tokens, delta.logprobs)
        if delta.first and self._echoes:
            assert choice.prompt_logprobs is not None, f"choice {choice.index} has a prompt without log probabilities"
            before = self._echoes[choice.index].logprobs(choice.prompt_logprobs, self.plan.logprobs)
            return {
                "tokens": before["tokens"] + made["tokens"],
                "token_logprobs": before["token_logprobs"] + made["token_logprobs"],
                "top_logprobs": before["top_logprobs"] + made["top_logprobs"],
                "text_offset": before["text_offset"] + made["text_offset"],
            }
        return made

    def text(self, choice: Choice, delta: Delta) -> str:
        """The text of a delta, after the prompt if the prompt is echoed and the delta is the first one."""
        return self._echoes[choice.index].text + delta.text if delta.first and self._echoes else delta.text

    def delta(self, choice: Choice, delta: Delta) -> ChatDelta:
        """The delta of a chunk of a chat with a parser. It has what `delta` has: several fields, or none."""
        made: ChatDelta = {}
        if delta.text:
            made["content"] = delta.text
        if delta.reasoning:
            made["reasoning_content"] = made["reasoning"] = delta.reasoning
        if calls := delta.calls:
            made["tool_calls"] = [self._call_delta(choice, part) for part in calls]
        return made

    def _message(self, choice: Choice, delta: Delta) -> ChatAnswerMessage:
        """The message of a chat. Its content is null if it has none besides calls or reasoning."""
        calls, reasoning = delta.calls, delta.reasoning
        text = delta.text or (None if calls or reasoning else "")
        made: ChatAnswerMessage = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            made["reasoning_content"] = made["reasoning"] = reasoning
        if calls:
            made["tool_calls"] = [self._call(choice, part) for part in calls]
        return made

    def _call(self, choice: Choice, part: Part) -> AnswerCall | AnswerCustomCall:
        assert part.name is not None, f"choice {choice.index} has a call without a name"
        id = CALL_PREFIX + call_id(self.request, choice.index, part.call)
        if part.kind is PartKind.CUSTOM:
            return {"id": id, "type": "custom", "custom": {"name": part.name, "input": part.text}}
        return {"id": id, "type": "function", "function": {"name": part.name, "arguments": part.text}}

    def _call_delta(self, choice: Choice, part: Part) -> CallDelta | CustomCallDelta:
        """A call, or a further piece of its arguments or its input."""
        if part.name is not None:
            return cast(CallDelta | CustomCallDelta, {"index": part.call, **self._call(choice, part)})
        if part.kind is PartKind.CUSTOM:
            return {"index": part.call, "custom": {"input": part.text}}
        return {"index": part.call, "function": {"arguments": part.text}}

    def body(self) -> bytes:
        """The whole answer as JSON, once `ended`."""
        return orjson.dumps(self._chat() if self.plan.chat else self._completion())

    def _chat(self) -> ChatCompletion:
        first, tier = self.choices[0], self.plan.service_tier
        served: Served = {} if tier is None else {"service_tier": tier}
        return {
            "id": self.request,
            "object": "chat.completion",
            "created": self.plan.created,
            "model": self.plan.model or self.model.name,
            "choices": [self._chat_choice(choice) for choice in self.choices],
            "usage": self.usage(),
            **served,
            "prompt_token_ids": self._prompt_token_ids(first),
            "prompt_logprobs": self._prompt_logprobs(first),
        }

    def _completion(self) -> Completion:
        return {
            "id": self.request,
            "object": "text_completion",
            "created": self.plan.created,
            "model": self.plan.model or self.model.name,
            "choices": [self._text_choice(choice) for choice in self.choices],
            "usage": self.usage(),
        }

    def _chat_choice(self, choice: Choice) -> ChatChoice:
        delta = choice.take()
        assert delta is not None, f"choice {choice.index} has not ended"
        assert delta.finish_reason is not None, f"choice {choice.index} has not ended"
        return {
            "index": choice.index,
            "message": self._message(choice, delta),
            "logprobs": self._chat_logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": delta.tokens if self.plan.return_token_ids else None,
        }

    def _text_choice(self, choice: Choice) -> CompletionChoice:
        delta = choice.take()
        assert delta is not None, f"choice {choice.index} has not ended"
        reason = delta.finish_reason
        assert reason == "stop" or reason == "length", f"a completion ends by {reason}"
        return {
            "index": choice.index,
            "text": self.text(choice, delta),
            "logprobs": self._text_logprobs(choice, delta),
            "finish_reason": reason,
            "stop_reason": choice.stop_reason,
            "token_ids": delta.tokens if self.plan.return_token_ids else None,
            "prompt_token_ids": self._prompt_token_ids(choice),
            "prompt_logprobs": self._prompt_logprobs(choice),
        }

    def _prompt_token_ids(self, choice: Choice) -> list[int] | None:
        """vLLM's field; None if the request does not ask for it."""
        return self.plan.prompt_of(choice.index) if self.plan.return_token_ids else None

    def _prompt_logprobs(self, choice: Choice) -> ScoredPrompt | None:
        """vLLM's field; None if the request does not ask for it."""
        count, scores = self.plan.prompt_logprobs, choice.prompt_logprobs
        if count is None:
            return None
        assert scores is not None, f"choice {choice.index} has a prompt without log probabilities"
        return prompt_logprobs(self.model.tokenizer, self.plan.prompt_of(choice.index), scores, count)
