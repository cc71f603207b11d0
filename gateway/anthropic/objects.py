"""The objects of the Messages API: the message, its usage, why it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from gateway.answer.plan import Plan
from gateway.answer.transcript import Transcript
from gateway.model import ServedModel
from gateway.openai.answer import Answer
from gateway.pool_client.generation import Generation
from services.messages import End
from services.requests import FinishReason


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, the same at every gateway."""

    id: str
    model: str
    plan: Plan

    @classmethod
    def of(cls, generation: Generation, model: ServedModel) -> Self:
        return cls(generation.request, model.name, generation.plan)


def transcript_of(generation: Generation, model: ServedModel) -> Transcript:
    """Empty, for the events of `generation`."""
    choice = Answer(generation.plan, model, generation.request).choices[0]
    return Transcript(choice, model.tokenizer, with_logprobs=False)


def message(asked: Asked, transcript: Transcript | None) -> dict[str, Any]:
    """The message once it has ended; without a transcript as it begins: empty."""
    end = transcript.end if transcript else None
    return {
        "id": asked.id,
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [text_block(transcript.text)] if transcript else [],
        **stop(end),
        "usage": usage(asked, transcript) | {"service_tier": _tier(asked.plan)},
    }


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def stop(end: End | None) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence`; a token id that the request named as a stop is no sequence of Anthropic's."""
    if end is None:
        return {"stop_reason": None, "stop_sequence": None}
    if isinstance(end.stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    return {"stop_reason": "max_tokens" if end.reason is FinishReason.LENGTH else "end_turn", "stop_sequence": None}


def usage(asked: Asked, transcript: Transcript | None) -> dict[str, int]:
    """`input_tokens` counts the prompt tokens that were computed, `cache_read_input_tokens` those that came from the
    prefix cache, which is known at the end. `cache_creation_input_tokens` is always 0: writing to the cache is free."""
    end = transcript.end if transcript else None
    cached = end.cached if end else 0
    return {
        "input_tokens": asked.plan.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": transcript.tokens if transcript else 0,
    }


def _tier(plan: Plan) -> str:
    return "priority" if plan.service_tier == "priority" else "standard"
