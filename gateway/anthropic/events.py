"""The server-sent events of a message.

With ids, the `id` of an event is `<message>:<n>`. n is a function of token indices. It does not depend on how tokens
are grouped into events, on the gateway or on where a stream was resumed: the opening events are 0 to 2; a delta is 2 +
the number of token events (including the end) up to it; two closing events follow. The last event, `message_stop`, has
no id: as with OpenAI's `[DONE]`, a client that resumes receives it again.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from gateway.answer.transcript import Transcript, transcript_of
from gateway.anthropic.objects import MessageHead, message, stop, text_block, usage
from gateway.errors import ApiError, Kind, anthropic_error_body
from gateway.http.headers import Position
from gateway.model import ServedModel
from gateway.pool_client.generation import Generation
from services.messages import TokenEvent

LAST_OPENING = 2
CLOSING = 2  # numbered events after the last delta


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
        self.done = False  # whether the last event has been written

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames of `events`; b"" while their text is held back.

        Raises ApiError if the message failed before any frame, and if it ended before event number `after`.
        """
        assert not self.done
        transcript = self._transcript
        for event in events:
            transcript.add(event)
            if LAST_OPENING + transcript.num_events <= self._after:
                transcript.take(allow_empty=True)
        error = transcript.error
        frames = [] if self._opened or (error and transcript.num_events == 1) else self._opening()
        parts, _ = transcript.take()
        text = "".join([part.text for part in parts])
        if text:
            frames.append(self._delta(text))
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
        return [
            self._event("message_start", 0, {"message": message(self._head, None)}),
            self._event("content_block_start", 1, {"index": 0, "content_block": text_block("")}),
            self._event("ping", LAST_OPENING, {}),
        ]

    def _closing(self) -> list[bytes]:
        """The usage is that of the whole message, because clients overwrite that of `message_start` with it."""
        last, transcript = LAST_OPENING + self._transcript.num_events, self._transcript
        fields = {"delta": stop(transcript.end), "usage": usage(self._head, transcript)}
        return [
            self._event("content_block_stop", last + 1, {"index": 0}),
            self._event("message_delta", last + CLOSING, fields),
            _frame(b"message_stop", b'{"type":"message_stop"}'),
        ]

    def _check_position(self) -> None:
        last = LAST_OPENING + self._transcript.num_events + CLOSING
        if self._after > last:
            text = f"'Last-Event-ID' is of event {self._after}, the last one of '{self._head.id}' is {last}."
            raise ApiError(Kind.INVALID, text, "Last-Event-ID")

    def _delta(self, text: str) -> bytes:
        """The constant parts are encoded once, because every token takes this path."""
        delta = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%b}}' % orjson.dumps(text)
        return _frame(b"content_block_delta", delta, self._id_line(LAST_OPENING + self._transcript.num_events))

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
    plan = generation.plan
    if position is not None:
        most = LAST_OPENING + plan.max_new_tokens + 1 + CLOSING
        if len(position.counts) != 1 or position.counts[0] > most:
            raise position.wrong(f"is not the id of an event of this message: <message>:<n>, n at most {most}")
    after = -1 if position is None else position.counts[0]
    head, name = MessageHead.of(generation, model), getattr(request.state, "request_id", None)
    return MessageEventWriter(head, transcript_of(plan, model), after, with_ids, name)


def _frame(kind: bytes, data: bytes, id_line: bytes = b"") -> bytes:
    return b"event: %b\n%bdata: %b\n\n" % (kind, id_line, data)
