"""The server-sent events of a response.

`sequence_number` is a function of token indices (see `gateway.answer.items`). The opening events are 0 and 1. Without a
parser 2 and 3 add the message before its first token; with a parser an item is added when its first part comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.answer.choice import UNANSWERED
from gateway.answer.items import ADDED, DELTA, OutputItem, Transcript
from gateway.answer.parts import PartKind
from gateway.errors import ApiError
from gateway.responses.objects import ResponseHead, content_part, empty_response, new_item, output_item, response
from services.messages import TokenEvent
from services.requests import FinishReason

LAST_OPENING = 3
CLOSING = 4  # the number of the last event, after those of the items
DELTAS = {
    PartKind.TEXT: "response.output_text",
    PartKind.REASONING: "response.reasoning_text",
    PartKind.CALL: "response.function_call_arguments",
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
        status = "queued" if self._head.background else "in_progress"
        return self._event("response.created", 0, {"response": empty_response(self._head, status)})

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
        data = details | {"type": "error", "error": details, "sequence_number": self._last}
        return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"

    def _opening(self) -> list[bytes]:
        self._opened = True
        frames = [self._event("response.in_progress", 1, {"response": empty_response(self._head, "in_progress")})]
        return frames if self._transcript.parsed else frames + self._added(self._transcript.items[0], 2)

    def _added(self, item: OutputItem, number: int) -> list[bytes]:
        """A call has no content part."""
        added = {"output_index": item.index, "item": new_item(self._head, item)}
        frames = [self._event("response.output_item.added", number, added)]
        if item.kind is not PartKind.CALL:
            part = self._place(item) | {"part": content_part(item.kind)}
            frames.append(self._event("response.content_part.added", number + 1, part))
        return frames

    def _item_done(self, item: OutputItem, number: int) -> list[bytes]:
        text = item.text
        done, place = DELTAS[item.kind] + ".done", self._place(item)
        if item.kind is PartKind.CALL:
            frames = [self._event(done, number, place | {"name": item.name, "arguments": text})]
        else:
            logprobs = {"logprobs": item.logprobs} if item.kind is PartKind.TEXT else {}
            part = {"part": content_part(item.kind, text, item.logprobs)}
            frames = [
                self._event(done, number, place | {"text": text} | logprobs),
                self._event("response.content_part.done", number + 1, place | part),
            ]
        whole = {"output_index": item.index, "item": output_item(self._head, self._transcript, item)}
        return [*frames, self._event("response.output_item.done", number + 2, whole)]

    def _closing(self) -> bytes:
        """OpenAI has no event for a cancelled response: it is incomplete, with the status `cancelled`."""
        whole = response(self._head, self._transcript)
        kind = "incomplete" if whole["status"] == "cancelled" else whole["status"]
        return self._event(
            f"response.{kind}", LAST_OPENING + self._transcript.last_number + CLOSING, {"response": whole}
        )

    def _place(self, item: OutputItem) -> dict[str, Any]:
        place = {"item_id": self._head.id_of(item), "output_index": item.index}
        return place if item.kind is PartKind.CALL else place | {"content_index": 0}

    def _delta(self, item: OutputItem, number: int, text: str, logprobs: Sequence[dict[str, Any]]) -> bytes:
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
        self._delta_kind = DELTAS[item.kind].encode() + b".delta"
        self._delta_head = b'{"type":"%s",%s,"delta":' % (self._delta_kind, orjson.dumps(self._place(item))[1:-1])

    def _event(self, kind: str, number: int, fields: dict[str, Any]) -> bytes:
        if number <= self._after:
            return b""
        return self._frame(kind.encode(), number, orjson.dumps({"type": kind, **fields, "sequence_number": number}))

    def _frame(self, kind: bytes, number: int, data: bytes) -> bytes:
        self._last = number
        id = b"" if self._id is None else self._id + b"%d\n" % number
        return b"event: %s\n%sdata: %s\n\n" % (kind, id, data)
