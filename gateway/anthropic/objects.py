"""The objects of the Messages API: the message, its content blocks, its usage and its stop reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import orjson

from gateway.answer.choice import call_id
from gateway.answer.items import OutputItem, Transcript, transcript_of
from gateway.answer.parts import PartKind
from gateway.answer.plan import Plan
from gateway.errors import ApiError
from gateway.model import ServedModel
from gateway.pool_client.following import Generation
from gateway.schemas.messages import Block, CountedTokens, MessageObject, MessageStop, MessageTier
from services.messages import TokenEvent
from services.requests import FinishReason


@dataclass(frozen=True, slots=True)
class MessageHead:
    """What is known of a message before its first token."""

    id: str
    model: str
    plan: Plan

    @classmethod
    def of(cls, generation: Generation, model: ServedModel) -> Self:
        return cls(generation.request, generation.plan.model or model.name, generation.plan)


class MessageAnswer:
    """The whole message; a `WholeAnswer`."""

    def __init__(self, generation: Generation, model: ServedModel) -> None:
        self._head = MessageHead.of(generation, model)
        self._transcript = transcript_of(generation.plan, model)

    @property
    def ended(self) -> bool:
        return self._transcript.end is not None

    @property
    def error(self) -> ApiError | None:
        return self._transcript.error

    def add(self, events: list[TokenEvent]) -> None:
        self._transcript.add_all(events)

    def body(self) -> bytes:
        self._transcript.take()
        return orjson.dumps(message(self._head, self._transcript))


def message(head: MessageHead, transcript: Transcript | None) -> MessageObject:
    """The message after its end; without a transcript as it begins, without content."""
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": [block(head, item) for item in transcript.items] if transcript else [],
        **stop(transcript),
        "usage": {**usage(head, transcript), "service_tier": _tier(head.plan)},
    }


def new_block(head: MessageHead, item: OutputItem) -> Block:
    """The content block as it begins, without content."""
    return _block(head, item, "", {})


def block(head: MessageHead, item: OutputItem) -> Block:
    """The content block with all of its content."""
    return _block(head, item, item.text, _input(item.text) if item.is_call else {})


def _block(head: MessageHead, item: OutputItem, text: str, input: Any) -> Block:
    match item.kind:
        case PartKind.TEXT:
            return {"type": "text", "text": text, "citations": None}
        case PartKind.REASONING:
            return {"type": "thinking", "thinking": text, "signature": ""}
        case PartKind.CALL | PartKind.CUSTOM:  # the API has no custom tools of OpenAI
            id = "toolu_" + call_id(head.id, 0, item.call)
            return {"type": "tool_use", "id": id, "name": item.called, "input": input}


def _input(arguments: str) -> object:
    """The arguments of a call as JSON, written as the model wrote them. `{}` if they are not an object: those of a call
    that is cut."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(arguments) if isinstance(parsed, dict) else {}


def stop(transcript: Transcript | None) -> MessageStop:
    """`stop_reason` and `stop_sequence`. A stop token id is not a stop sequence in Anthropic's API."""
    end = transcript.end if transcript else None
    if transcript is None or end is None:
        return {"stop_reason": None, "stop_sequence": None}
    if isinstance(end.stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    if end.reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if transcript.choice.calls_tools else "end_turn", "stop_sequence": None}


def usage(head: MessageHead, transcript: Transcript | None) -> CountedTokens:
    """`input_tokens`: the prompt tokens that were computed; `cache_read_input_tokens`: those from the prefix cache,
    known after the end. `cache_creation_input_tokens` is always 0: writing to the cache is free."""
    end = transcript.end if transcript else None
    cached = end.cached if end else 0
    made: CountedTokens = {
        "input_tokens": head.plan.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": transcript.choice.completion_tokens if transcript else 0,
    }
    if head.plan.reasoning_parser:
        made["output_tokens_details"] = {"thinking_tokens": transcript.choice.reasoning_tokens if transcript else 0}
    return made


def _tier(plan: Plan) -> MessageTier:
    return "priority" if plan.service_tier == "priority" else "standard"
