"""The server-sent events of a response.

`sequence_number` is a function of token indices. It does not depend on how tokens are grouped into events, on the
gateway or on where a stream was resumed: the opening events are 0 to 3; a text event is 3 + the number of token events
(including the end) up to it; the closing events follow the end. Numbers increase, with gaps where tokens were grouped.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.answer.choice import UNANSWERED
from gateway.answer.transcript import Transcript
from gateway.errors import ApiError
from gateway.responses.objects import ResponseHead, empty_response, message, response, text_part
from services.messages import TokenEvent
from services.requests import FinishReason

LAST_OPENING = 3
CLOSING = 4  # closing events after the last text event


class ResponseEventWriter:
    """Writes the events after event number `after`; -1: all events. `with_ids`: events have an `id` line."""

    def __init__(self, head: ResponseHead, transcript: Transcript, after: int = -1, with_ids: bool = False) -> None:
        self._head = head
        self._transcript = transcript
        self._after = after
        self._created = self._opened = self._failed = False
        self._last = max(after, 0)  # the number of the last event written
        self._id = b"id: " + head.id.encode() + b":" if with_ids else None
        place = orjson.dumps(self._place())[1:-1]
        self._delta_head = b'{"type":"response.output_text.delta",' + place + b',"delta":'

    @property
    def done(self) -> bool:
        return self._failed or self._transcript.end is not None

    def created(self) -> bytes:
        """The event of the accepted request, which precedes all others."""
        self._created = True
        status = "queued" if self._head.background else "in_progress"
        return self._event("response.created", 0, {"response": empty_response(self._head, status)})

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames of `events`, including the closing ones after the end; b"" while their text is held back."""
        frames = [] if self._created else [self.created()]
        for event in events:
            self._transcript.add(event)
            if LAST_OPENING + self._transcript.num_events <= self._after:
                self._transcript.take(allow_empty=True)
        end = self._transcript.end
        if not self._opened and (end is None or end.reason not in UNANSWERED or self._transcript.num_events > 1):
            frames += self._opening()
        parts, logprobs = self._transcript.take()
        text = "".join([part.text for part in parts])
        if text or logprobs:
            frames.append(self._delta(text, logprobs))
        if end is not None:
            frames += self._closing()
        return b"".join(frames)

    def fail(self, error: ApiError) -> bytes:
        """The event that ends this stream, but not the response, with an error. Its number is that of the event before
        it, after which the stream can be resumed."""
        self._failed = True
        details = error.body()["error"]
        data = details | {"type": "error", "error": details, "sequence_number": self._last}
        return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"

    def _opening(self) -> list[bytes]:
        self._opened = True
        part = self._place() | {"part": text_part(None)}
        return [
            self._event("response.in_progress", 1, {"response": empty_response(self._head, "in_progress")}),
            self._event("response.output_item.added", 2, {"output_index": 0, "item": message(self._head, None)}),
            self._event("response.content_part.added", LAST_OPENING, part),
        ]

    def _closing(self) -> list[bytes]:
        """OpenAI has no event for a cancelled response: it is incomplete, with the status `cancelled`."""
        transcript, last = self._transcript, LAST_OPENING + self._transcript.num_events
        assert transcript.end is not None
        reason, frames = transcript.end.reason, []
        if self._opened and reason is not FinishReason.ERROR:
            text = {"text": transcript.text, "logprobs": transcript.logprobs}
            item = {"output_index": 0, "item": message(self._head, transcript)}
            frames = [
                self._event("response.output_text.done", last + 1, self._place() | text),
                self._event("response.content_part.done", last + 2, self._place() | {"part": text_part(transcript)}),
                self._event("response.output_item.done", last + 3, item),
            ]
        kind = {FinishReason.STOP: "completed", FinishReason.ERROR: "failed"}.get(reason, "incomplete")
        whole = {"response": response(self._head, transcript)}
        return [*frames, self._event(f"response.{kind}", last + CLOSING, whole)]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._head.item_id, "output_index": 0, "content_index": 0}

    def _delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        """The constant parts are encoded once, because every token takes this path."""
        number = LAST_OPENING + self._transcript.num_events
        data = self._delta_head + orjson.dumps(text) + b',"logprobs":' + (orjson.dumps(logprobs) if logprobs else b"[]")
        return self._frame(b"response.output_text.delta", number, data + b',"sequence_number":%d}' % number)

    def _event(self, kind: str, number: int, fields: dict[str, Any]) -> bytes:
        if number <= self._after:
            return b""
        return self._frame(kind.encode(), number, orjson.dumps({"type": kind, **fields, "sequence_number": number}))

    def _frame(self, kind: bytes, number: int, data: bytes) -> bytes:
        self._last = number
        id = b"" if self._id is None else self._id + b"%d\n" % number
        return b"event: %s\n%sdata: %s\n\n" % (kind, id, data)
