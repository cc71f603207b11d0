"""The server-sent events of a response.

`sequence_number` is a function of token indices (see `gateway.answer.items`). The opening events are 0 and 1. Without a
parser 2 and 3 add the message before its first token; with a parser an item is added when its first part comes.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.answer.choice import UNANSWERED
from gateway.answer.items import ADDED, DELTA, OutputItem, Transcript
from gateway.answer.parts import PartKind
from gateway.errors import ApiError
from gateway.responses.objects import (
    ResponseHead,
    empty_response,
    new_item,
    output_item,
    reasoning_part,
    response,
    text_part,
)
from gateway.schemas import response_answers as answers
from gateway.schemas.answers import TokenLogprob
from services.messages import TokenEvent
from services.requests import FinishReason

LAST_OPENING = 3
CLOSING = 4  # the number of the last event, after those of the items
DELTAS = {
    PartKind.TEXT: b"response.output_text.delta",
    PartKind.REASONING: b"response.reasoning_text.delta",
    PartKind.CALL: b"response.function_call_arguments.delta",
    PartKind.CUSTOM: b"response.custom_tool_call_input.delta",
}
ENDS: dict[answers.ResponseStatus, answers.EndEventType] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",  # OpenAI has no event for a cancelled response
    "failed": "response.failed",
}


class ResponseEventWriter:
    """Writes the events after event number `after`; -1: all events. `with_ids`: events have an `id` line."""

    def __init__(self, head: ResponseHead, transcript: Transcript, after: int = -1, with_ids: bool = False) -> None:
        self._head = head
        self._transcript = transcript
        self._after = after
        self._created = self._opened = self._failed = False
        self._last = max(after, 0)  # the number of the last event written
        self._id = b"id: " + head.id.encode() + b":" if with_ids else None
        self._delta_item: OutputItem | None = None
        self._delta_kind = self._delta_head = b""
        self._scored = False  # deltas of the item have log probabilities

    @property
    def done(self) -> bool:
        return self._failed or self._transcript.end is not None

    def created(self) -> bytes:
        """The event of the accepted request, which precedes all others."""
        self._created = True
        made = empty_response(self._head, "queued" if self._head.background else "in_progress")
        return self._event({"type": "response.created", "response": made, "sequence_number": 0})

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames of `events`, including the closing ones after the end; b"" while their text is held back."""
        frames = [] if self._created else [self.created()]
        changes = self._transcript.events_of(events, self._after - LAST_OPENING)
        end = self._transcript.end
        if not self._opened and (end is None or end.reason not in UNANSWERED or self._transcript.num_events > 1):
            frames += self._opening()
        if end is not None and end.reason is not FinishReason.ERROR and self._opened:
            changes += self._transcript.done()
        for change, item, place, text, logprobs in changes:
            number = LAST_OPENING + place
            if change is DELTA:
                frames.append(self._delta(item, number, text, logprobs))
            else:
                frames += self._added(item, number) if change is ADDED else self._item_done(item, number)
        if end is not None:
            frames.append(self._closing())
        return b"".join(frames)

    def fail(self, error: ApiError) -> bytes:
        """The event that ends this stream, but not the response, with an error. Its number is that of the event before
        it, after which the stream can be resumed."""
        self._failed = True
        details = error.body()["error"]
        event: answers.ErrorEvent = {
            "message": error.message,
            "type": "error",
            "param": error.param,
            "code": details["code"],
            "error": details,
            "sequence_number": self._last,
        }
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"

    def _opening(self) -> list[bytes]:
        self._opened = True
        begun = empty_response(self._head, "in_progress")
        frame = self._event({"type": "response.in_progress", "response": begun, "sequence_number": 1})
        return [frame] if self._transcript.choice.parsed else [frame, *self._added(self._transcript.items[0], 2)]

    def _added(self, item: OutputItem, number: int) -> list[bytes]:
        part = self._part_events("response.content_part.added", item, number + 1)
        return [self._item_event("response.output_item.added", item, new_item(self._head, item), number), *part]

    def _item_done(self, item: OutputItem, number: int) -> list[bytes]:
        text, last = item.text, output_item(self._head, self._transcript, item)
        done = self._event(self._text_done(item, text, number))
        part = self._part_events("response.content_part.done", item, number + 1, text, item.logprobs)
        return [done, *part, self._item_event("response.output_item.done", item, last, number + 2)]

    def _text_done(
        self, item: OutputItem, text: str, number: int
    ) -> answers.TextDone | answers.ReasoningDone | answers.ArgumentsDone | answers.InputDone:
        match item.kind:
            case PartKind.TEXT:
                return {
                    "type": "response.output_text.done",
                    **self._part_place(item),
                    "text": text,
                    "logprobs": item.logprobs,
                    "sequence_number": number,
                }
            case PartKind.REASONING:
                return {
                    "type": "response.reasoning_text.done",
                    **self._part_place(item),
                    "text": text,
                    "sequence_number": number,
                }
            case PartKind.CALL:
                return {
                    "type": "response.function_call_arguments.done",
                    **self._item_place(item),
                    "name": item.called,
                    "arguments": text,
                    "sequence_number": number,
                }
            case PartKind.CUSTOM:
                return {
                    "type": "response.custom_tool_call_input.done",
                    **self._item_place(item),
                    "input": text,
                    "sequence_number": number,
                }

    def _closing(self) -> bytes:
        whole = response(self._head, self._transcript)
        number = LAST_OPENING + self._transcript.last_number + CLOSING
        return self._event({"type": ENDS[whole["status"]], "response": whole, "sequence_number": number})

    def _item_event(
        self, type: answers.ItemEventType, item: OutputItem, made: answers.ResponseItem, number: int
    ) -> bytes:
        return self._event({"type": type, "output_index": item.index, "item": made, "sequence_number": number})

    def _part_events(
        self,
        type: answers.PartEventType,
        item: OutputItem,
        number: int,
        text: str = "",
        logprobs: Sequence[TokenLogprob] = (),
    ) -> list[bytes]:
        """The event of the item's content part. A call has none."""
        if item.is_call:
            return []
        part = reasoning_part(text) if item.kind is PartKind.REASONING else text_part(text, logprobs)
        return [self._event({"type": type, **self._part_place(item), "part": part, "sequence_number": number})]

    def _item_place(self, item: OutputItem) -> answers.ItemPlace:
        return {"item_id": self._head.id_of(item), "output_index": item.index}

    def _part_place(self, item: OutputItem) -> answers.PartPlace:
        return {**self._item_place(item), "content_index": 0}

    def _delta(self, item: OutputItem, number: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        if number <= self._after or not (text or logprobs):
            return b""
        if item is not self._delta_item:
            self._begin_deltas(item)
        data = self._delta_head + orjson.dumps(text)
        if self._scored:
            data += b',"logprobs":' + (orjson.dumps(logprobs) if logprobs else b"[]")
        return self._frame(self._delta_kind, number, data + b',"sequence_number":%d}' % number)

    def _begin_deltas(self, item: OutputItem) -> None:
        """The constant parts of deltas are encoded once for each item, because every token takes this path."""
        self._delta_item, self._scored = item, item.kind is PartKind.TEXT
        self._delta_kind = DELTAS[item.kind]
        place = self._item_place(item) if item.is_call else self._part_place(item)
        self._delta_head = b'{"type":"%s",%s,"delta":' % (self._delta_kind, orjson.dumps(place)[1:-1])

    def _event(self, event: answers.ResponseEvent) -> bytes:
        number = event["sequence_number"]
        return b"" if number <= self._after else self._frame(event["type"].encode(), number, orjson.dumps(event))

    def _frame(self, kind: bytes, number: int, data: bytes) -> bytes:
        self._last = number
        id = b"" if self._id is None else self._id + b"%d\n" % number
        return b"event: %s\n%sdata: %s\n\n" % (kind, id, data)
