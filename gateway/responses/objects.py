"""The objects of the Responses API: the response, its message and the text part of the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.answer.choice import failure
from gateway.answer.plan import AnswerKind
from gateway.answer.transcript import Transcript
from gateway.errors import Kind
from services.messages import End
from services.requests import FinishReason


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is known of a response before its first token. `echo`: the fields of the object that the request sets."""

    id: str
    model: str
    created_at: int  # Unix seconds
    prompt_tokens: int
    service_tier: str | None
    echo: dict[str, Any]

    @property
    def background(self) -> bool:
        return bool(self.echo["background"])

    @property
    def store(self) -> bool:
        return bool(self.echo["store"])

    @property
    def item_id(self) -> str:
        """The id of the output message."""
        return "msg_" + self.id.removeprefix(AnswerKind.RESPONSE.prefix)


def empty_response(head: ResponseHead, status: str) -> dict[str, Any]:
    """The response object without output: `queued` or `in_progress`."""
    return _response(head, status, [])


def response(head: ResponseHead, transcript: Transcript) -> dict[str, Any]:
    """The response object with the output so far."""
    end = transcript.end
    if end is None:
        if transcript.num_events == 0 and head.background:
            return empty_response(head, "queued")
        output = [message(head, transcript)] if transcript.num_events else []
        return _response(head, "in_progress", output)
    output = [message(head, transcript)] if transcript.num_events > 1 else []
    made = _response(head, _status(end), output) | {"usage": _usage(head, transcript)}
    if end.reason is FinishReason.LENGTH:
        made["incomplete_details"] = {"reason": "max_output_tokens"}
    if end.reason is FinishReason.ERROR:
        error = failure(end)
        code = "invalid_prompt" if error is not None and error.kind is Kind.INVALID else "server_error"
        made["error"] = {"code": code, "message": str(error)}
    return made


def message(head: ResponseHead, transcript: Transcript | None) -> dict[str, Any]:
    """The output message; without a transcript as it is when it is added, without content."""
    end = transcript.end if transcript else None
    status = "in_progress" if end is None else "completed" if end.reason is FinishReason.STOP else "incomplete"
    content = [text_part(transcript)] if transcript else []
    return {"id": head.item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(transcript: Transcript | None) -> dict[str, Any]:
    """The text part of the message; empty without a transcript."""
    text, logprobs = (transcript.text, transcript.logprobs) if transcript else ("", [])
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _status(end: End) -> str:
    return {
        FinishReason.STOP: "completed",
        FinishReason.LENGTH: "incomplete",
        FinishReason.CANCELLED: "cancelled",
        FinishReason.ERROR: "failed",
    }[end.reason]


def _usage(head: ResponseHead, transcript: Transcript) -> dict[str, Any]:
    cached = transcript.end.cached if transcript.end else 0
    return {
        "input_tokens": head.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": transcript.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": head.prompt_tokens + transcript.completion_tokens,
    }


def _response(head: ResponseHead, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return head.echo | {
        "id": head.id,
        "object": "response",
        "created_at": head.created_at,
        "status": status,
        "model": head.model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "reasoning": None,
        "service_tier": head.service_tier,
    }
