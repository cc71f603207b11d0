"""The objects of the Responses API: the response and the items of its output: messages, reasoning and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.answer.choice import call_id, failure
from gateway.answer.items import OutputItem, Transcript
from gateway.answer.parts import PartKind
from gateway.answer.plan import AnswerKind
from gateway.errors import Kind
from gateway.schemas import response_answers as answers
from gateway.schemas.answers import ServiceTier, TokenLogprob
from services.messages import End
from services.requests import FinishReason

PLAIN_TEXT: answers.ResponseText = {"format": {"type": "text"}}
_PREFIXES = {PartKind.TEXT: "msg_", PartKind.REASONING: "rs_", PartKind.CALL: "fc_", PartKind.CUSTOM: "ctc_"}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is known of a response before its first token. `echo`: the fields of the object that the request sets."""

    id: str
    model: str
    created_at: int  # Unix seconds
    prompt_tokens: int
    service_tier: ServiceTier | None
    echo: answers.StoredEcho

    @property
    def background(self) -> bool:
        return bool(self.echo["background"])

    @property
    def store(self) -> bool:
        return bool(self.echo["store"])

    @property
    def suffix(self) -> str:
        """The part of the response's id that the ids of its items share."""
        return self.id.removeprefix(AnswerKind.RESPONSE.prefix)

    def id_of(self, item: OutputItem) -> str:
        """The id of an output item, the same at every gateway."""
        place = f"_output_{item.index}" if item.index else ""
        return _PREFIXES[item.kind] + self.suffix + place

    def call_id(self, item: OutputItem) -> str:
        """The id by which the output of the called tool names the call."""
        return "call_" + call_id(self.id, 0, item.call)


def empty_response(head: ResponseHead, status: answers.ResponseStatus) -> answers.ResponseObject:
    """The response object without output: `queued` or `in_progress`."""
    return _response(head, status, [])


def response(head: ResponseHead, transcript: Transcript) -> answers.ResponseObject:
    """The response object with the output so far."""
    end = transcript.end
    if end is None:
        if transcript.num_events == 0 and head.background:
            return empty_response(head, "queued")
        return _response(head, "in_progress", _output(head, transcript) if transcript.num_events else [])
    output = _output(head, transcript) if transcript.num_events > 1 else []
    status = _status(end, transcript.cut)
    made = _response(head, status, output)
    made["usage"] = _usage(head, transcript)
    if status == "completed" and end.at:
        made["completed_at"] = max(head.created_at, int(end.at))  # the clocks of two machines differ
    if end.reason is FinishReason.LENGTH:
        made["incomplete_details"] = {"reason": "max_output_tokens"}
    if end.reason is FinishReason.ERROR:
        error = failure(end)
        invalid = error is not None and error.kind is Kind.INVALID
        made["error"] = {"code": "invalid_prompt" if invalid else "server_error", "message": str(error)}
    return made


def new_item(head: ResponseHead, item: OutputItem) -> answers.ResponseItem:
    """The item as it is when it is added: without content."""
    return _item(head, item, "in_progress", begun=False)


def output_item(head: ResponseHead, transcript: Transcript, item: OutputItem) -> answers.ResponseItem:
    """The item with what it has so far. All items but the last are complete. The last is if the model or a stop ended
    the answer; a call is unless it is cut."""
    end = transcript.end
    status: answers.ItemStatus = "completed"
    if item is transcript.items[-1]:
        if end is None:
            status = "in_progress"
        elif transcript.cut if item.is_call else end.reason is not FinishReason.STOP:
            status = "incomplete"
    return _item(head, item, status, begun=True)


def text_part(text: str = "", logprobs: Sequence[TokenLogprob] = ()) -> answers.OutputText:
    """The only part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning_part(text: str = "") -> answers.ReasoningText:
    """The only part of reasoning."""
    return {"type": "reasoning_text", "text": text}


def _item(head: ResponseHead, item: OutputItem, status: answers.ItemStatus, begun: bool) -> answers.ResponseItem:
    """`begun`: with what the item has so far; otherwise without content."""
    id = head.id_of(item)
    match item.kind:
        case PartKind.TEXT:
            parts = [text_part(item.text, item.logprobs)] if begun else []
            return {"id": id, "type": "message", "role": "assistant", "status": status, "content": parts}
        case PartKind.REASONING:
            thoughts = [reasoning_part(item.text)] if begun else []
            return {"id": id, "type": "reasoning", "status": status, "summary": [], "content": thoughts}
        case PartKind.CALL | PartKind.CUSTOM:
            custom, text = item.kind is PartKind.CUSTOM, item.text if begun else ""
            return call_item(id, status, head.call_id(item), item.called, text, custom)


def call_item(
    id: str, status: answers.ItemStatus, call_id: str, name: str, text: str, custom: bool
) -> answers.FunctionCallItem | answers.CustomCallItem:
    """The item of a call. `text`: its arguments, or if the tool is a `custom` one its input."""
    if custom:
        return {
            "id": id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": call_id,
            "name": name,
            "input": text,
        }
    return {
        "id": id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": text,
    }


def _output(head: ResponseHead, transcript: Transcript) -> list[answers.ResponseItem]:
    return [output_item(head, transcript, item) for item in transcript.items]


def _status(end: End, cut: bool) -> answers.ResponseStatus:
    """`cut`: the last item is a call that is incomplete. Open Responses requires that its response is, too."""
    match end.reason:
        case FinishReason.STOP:
            return "incomplete" if cut else "completed"
        case FinishReason.LENGTH:
            return "incomplete"
        case FinishReason.CANCELLED:
            return "cancelled"
        case FinishReason.ERROR:
            return "failed"


def _usage(head: ResponseHead, transcript: Transcript) -> answers.ResponseUsage:
    cached = transcript.end.cached if transcript.end else 0
    return {
        "input_tokens": head.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": transcript.choice.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": transcript.choice.reasoning_tokens},
        "total_tokens": head.prompt_tokens + transcript.choice.completion_tokens,
    }


def _response(
    head: ResponseHead, status: answers.ResponseStatus, output: list[answers.ResponseItem]
) -> answers.ResponseObject:
    return {
        **head.echo,
        "id": head.id,
        "object": "response",
        "created_at": head.created_at,
        "completed_at": None,
        "status": status,
        "model": head.model,
        "output": output,
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "text": head.echo.get("text", PLAIN_TEXT),
        "tools": head.echo.get("tools", []),
        "tool_choice": head.echo.get("tool_choice", "auto"),
        "truncation": "disabled",
        "reasoning": head.echo.get("reasoning"),
        "service_tier": head.service_tier,
        "presence_penalty": head.echo.get("presence_penalty", 0.0),
        "frequency_penalty": head.echo.get("frequency_penalty", 0.0),
        "max_tool_calls": head.echo.get("max_tool_calls"),
    }
