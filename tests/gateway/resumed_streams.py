"""The stream of one answer as gateways write it, each of which has only what the pool keeps: plan and tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.answer.items import transcript_of
from gateway.answer.plan import AnswerKind, Plan
from gateway.anthropic.events import MessageEventWriter
from gateway.anthropic.objects import MessageHead
from gateway.model import ServedModel
from gateway.openai.answer import Answer
from gateway.openai.events import ChunkWriter
from gateway.responses.events import ResponseEventWriter
from gateway.responses.objects import ResponseHead
from gateway.schemas.responses import ResponseRequest
from services.messages import End, TokenEvent
from services.requests import FinishReason

KINDS = (AnswerKind.CHAT, AnswerKind.RESPONSE, AnswerKind.MESSAGE)
ECHO = ResponseRequest.model_validate({"input": "hi"}).echo()
Write = Callable[[list[TokenEvent]], bytes]


def plan_of(**fields: object) -> Plan:
    """A plan with one choice."""
    plan = Plan(AnswerKind.CHAT, 7, "", 1, 1, prompt_tokens=5, max_new_tokens=300)
    return replace(plan, **fields)  # type: ignore[arg-type]


def check_resumed_at_every_event(model: ServedModel, plan: Plan, tokens: list[int], kind: AnswerKind) -> int:
    """Asserts that a new gateway that goes on after any event of the stream writes the rest of the same events. Returns
    the number of events."""
    packed = replace(plan, kind=kind).pack()
    request = kind.prefix + 32 * "0"
    events = [TokenEvent(f"{request}/0", index, token) for index, token in enumerate(tokens)]
    events.append(TokenEvent(f"{request}/0", len(tokens), None, end=End(FinishReason.STOP)))

    def stream(after: str | None = None) -> list[bytes]:
        write = writer_of(Plan.unpack(packed), model, request, after)
        return b"".join(write([event]) for event in events).split(b"\n\n")[:-1]

    whole = stream()
    ids = [line[4:].decode() for frame in whole for line in frame.split(b"\n") if line.startswith(b"id: ")]
    assert len(set(ids)) == len(ids)
    for place, id in enumerate(ids):
        assert stream(id.rpartition(":")[2]) == whole[place + 1 :], whole[place]
    return len(ids)


def writer_of(plan: Plan, model: ServedModel, request: str, after: str | None) -> Write:
    """What writes the events after the one whose id ends with `after`."""
    match plan.kind:
        case AnswerKind.CHAT:
            counts = () if after is None else (int(after),)
            return ChunkWriter(Answer(plan, model, request, counts), len(counts), with_ids=True).write
        case AnswerKind.RESPONSE:
            head = ResponseHead(request, "tiny", plan.created, plan.prompt_tokens, None, ECHO)
            return ResponseEventWriter(head, transcript_of(plan, model), int(after or -1), with_ids=True).write
    number = -1 if after is None else int(after)
    return MessageEventWriter(
        MessageHead(request, "tiny", plan), transcript_of(plan, model), number, with_ids=True
    ).write
