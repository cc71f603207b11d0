"""The server-sent events of a message.

With ids, the `id` of an event is `<message>:<n>`. n is a function of token indices (see `gateway.answer.items`). The
opening events are 0 and 2. Without a parser 1 opens the text before its first token; with a parser a block is opened
when its first part comes. The last event, `message_stop`, has no id: as with OpenAI's `[DONE]`, a client that resumes
receives it again.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from gateway.answer.items import ADDED, DELTA, OutputItem, Transcript, last_number, transcript_of
from gateway.answer.parts import PartKind
from gateway.anthropic.objects import MessageHead, message, new_block, stop, usage
from gateway.errors import ApiError, Kind, anthropic_error_body
from gateway.http.headers import Position
from gateway.model import ServedModel
from gateway.pool_client.following import Generation
from services.messages import TokenEvent

LAST_OPENING = 2
CLOSING = 2  # the number of the last numbered event, after those of the blocks
DELTAS = {
    PartKind.TEXT: b'"delta":{"type":"text_delta","text":',
    PartKind.REASONING: b'"delta":{"type":"thinking_delta","thinking":',
    PartKind.CALL: b'"delta":{"type":"input_json_delta","partial_json":',
}


class MessageEventWriter:
    """Writes the events after event number `after`; -1: all events. `with_ids`: events have an `id` line.

    `request_id` identifies the HTTP request in an error.
    """

    def __init__(
        self,
        head: MessageHead,
        transcript: Transcript,
        after: int = -1,
        with_ids: bool = False,
        request_id: str | None = None,
    ) -> None:
        self._head = head
        self._transcript = transcript
        self._after = after
        self._request_id = request_id
        self._opened = False
        self._id = b"id: " + head.id.encode() + b":" if with_ids else None
        self._delta_item: OutputItem | None = None
        self._delta_head = b""
        self.done = False  # whether the last event has been written

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames of `events`; b"" while their text is held back.

        Raises ApiError if the message failed before any frame, and if it ended before event number `after`.
        """
        assert not self.done
        transcript = self._transcript
        changes = transcript.events_of(events, self._after - LAST_OPENING)
        error = transcript.error
        frames = [] if self._opened or (error and transcript.num_events == 1) else self._opening()
        for change, item, place, text, _ in changes:
            number = LAST_OPENING + place
            if change is DELTA:
                frames.append(self._delta(item, number, text))
            else:
                frames += self._block_start(item, number) if change is ADDED else self._block_stop(item, number)
        written = b"".join(frames)
        if transcript.end is None:
            return written
        if error is None:
            self._check_position()
            written += b"".join(self._closing())
        elif not written:
            raise error
        else:
            written += self.fail(error)
        self.done = True
        return written

    def fail(self, error: ApiError) -> bytes:
        """The event that ends the stream with an error."""
        self.done = True
        return _frame(b"error", orjson.dumps(anthropic_error_body(error, self._request_id)))

    def _opening(self) -> list[bytes]:
        self._opened = True
        begun = [] if self._transcript.choice.parsed else self._block_start(self._transcript.items[0], 1)
        message_start = self._event("message_start", 0, {"message": message(self._head, None)})
        return [message_start, *begun, self._event("ping", LAST_OPENING, {})]

    def _block_start(self, item: OutputItem, number: int) -> list[bytes]:
        block = {"index": item.index, "content_block": new_block(self._head, item)}
        return [self._event("content_block_start", number, block)]

    def _block_stop(self, item: OutputItem, number: int) -> list[bytes]:
        """Anthropic signs its thinking; clients may expect the event of the signature, which is empty here."""
        if item.kind is not PartKind.REASONING:
            return [self._event("content_block_stop", number, {"index": item.index})]
        signature = {"index": item.index, "delta": {"type": "signature_delta", "signature": ""}}
        return [
            self._event("content_block_delta", number, signature),
            self._event("content_block_stop", number + 1, {"index": item.index}),
        ]

    def _closing(self) -> list[bytes]:
        """The usage is that of the whole message, because clients overwrite that of `message_start` with it."""
        transcript, frames = self._transcript, []
        for _, item, place, _, _ in transcript.done():
            frames += self._block_stop(item, LAST_OPENING + place)
        fields = {"delta": stop(transcript), "usage": usage(self._head, transcript)}
        frames.append(self._event("message_delta", LAST_OPENING + self._transcript.last_number + CLOSING, fields))
        return [*frames, _frame(b"message_stop", b'{"type":"message_stop"}')]

    def _check_position(self) -> None:
        last = LAST_OPENING + self._transcript.last_number + CLOSING
        if self._after > last:
            text = f"'Last-Event-ID' is of event {self._after}, the last one of '{self._head.id}' is {last}."
            raise ApiError(Kind.INVALID, text, "Last-Event-ID")

    def _delta(self, item: OutputItem, number: int, text: str) -> bytes:
        if number <= self._after or not text:
            return b""
        if item is not self._delta_item:
            self._begin_deltas(item)
        data = self._delta_head + orjson.dumps(text) + b"}}"
        return _frame(b"content_block_delta", data, self._id_line(number))

    def _begin_deltas(self, item: OutputItem) -> None:
        """The constant parts of deltas are made once for each block, because every token takes this path."""
        self._delta_item = item
        self._delta_head = b'{"type":"content_block_delta","index":%d,%b' % (item.index, DELTAS[item.kind])

    def _event(self, kind: str, number: int, fields: dict[str, Any]) -> bytes:
        if number <= self._after:
            return b""
        return _frame(kind.encode(), orjson.dumps({"type": kind, **fields}), self._id_line(number))

    def _id_line(self, number: int) -> bytes:
        return b"" if self._id is None else self._id + b"%d\n" % number


def message_event_writer(
    generation: Generation, model: ServedModel, position: Position | None, request: Request, with_ids: bool
) -> MessageEventWriter:
    """The writer of the events after `position`. Raises ApiError if no event of this message can have that number."""
    plan, transcript = generation.plan, transcript_of(generation.plan, model)
    if position is not None:
        most = LAST_OPENING + last_number(transcript.choice.parsed, plan.max_new_tokens + 1) + CLOSING
        if len(position.counts) != 1 or position.counts[0] > most:
            raise position.wrong(f"is not the id of an event of this message: <message>:<n>, n at most {most}")
    after = -1 if position is None else position.counts[0]
    head, name = MessageHead.of(generation, model), getattr(request.state, "request_id", None)
    return MessageEventWriter(head, transcript, after, with_ids, name)


def _frame(kind: bytes, data: bytes, id_line: bytes = b"") -> bytes:
    return b"event: %b\n%bdata: %b\n\n" % (kind, id_line, data)
