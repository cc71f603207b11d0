"""The objects of the Responses API: the response itself, its one message, the text in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.choice import failure
from gateway.errors import Kind
from gateway.plan import AnswerKind
from gateway.transcript import Transcript
from services.messages import End
from services.requests import FinishReason


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, the same at every gateway. `echo`: the fields of the object that the request decided."""

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
        """The id of the one message."""
        return "msg_" + self.id.removeprefix(AnswerKind.RESPONSE.prefix)


def begun(asked: Asked, status: str) -> dict[str, Any]:
    """The response object while nothing is said: `queued` or `in_progress`."""
    return _response(asked, status, [])


def response(asked: Asked, transcript: Transcript) -> dict[str, Any]:
    """The response object as the transcript stands."""
    end = transcript.end
    if end is None:
        if transcript.said == 0 and asked.background:
            return begun(asked, "queued")
        output = [message(asked, transcript)] if transcript.said else []
        return _response(asked, "in_progress", output)
    output = [message(asked, transcript)] if transcript.said > 1 else []
    made = _response(asked, _status(end), output) | {"usage": _usage(asked, transcript)}
    if end.reason is FinishReason.LENGTH:
        made["incomplete_details"] = {"reason": "max_output_tokens"}
    if end.reason is FinishReason.ERROR:
        error = failure(end)
        code = "invalid_prompt" if error is not None and error.kind is Kind.INVALID else "server_error"
        made["error"] = {"code": code, "message": str(error)}
    return made


def message(asked: Asked, transcript: Transcript | None) -> dict[str, Any]:
    """The output message; without a transcript as it is when it is added: empty."""
    end = transcript.end if transcript else None
    status = "in_progress" if end is None else "completed" if end.reason is FinishReason.STOP else "incomplete"
    content = [text_part(transcript)] if transcript else []
    return {"id": asked.item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(transcript: Transcript | None) -> dict[str, Any]:
    """The text of the message, empty without a transcript."""
    text, logprobs = (transcript.text, transcript.logprobs) if transcript else ("", [])
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def counted(input_tokens: int) -> dict[str, Any]:
    return {"object": "response.input_tokens", "input_tokens": input_tokens}


def deleted(id: str) -> dict[str, Any]:
    return {"id": id, "object": "response", "deleted": True}


def _status(end: End) -> str:
    return {
        FinishReason.STOP: "completed",
        FinishReason.LENGTH: "incomplete",
        FinishReason.CANCELLED: "cancelled",
        FinishReason.ERROR: "failed",
    }[end.reason]


def _usage(asked: Asked, transcript: Transcript) -> dict[str, Any]:
    cached = transcript.end.cached if transcript.end else 0
    return {
        "input_tokens": asked.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": transcript.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked.prompt_tokens + transcript.tokens,
    }


def _response(asked: Asked, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return asked.echo | {
        "id": asked.id,
        "object": "response",
        "created_at": asked.created_at,
        "status": status,
        "model": asked.model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "reasoning": None,
        "service_tier": asked.service_tier,
    }
