"""The server-sent events of a message.

Where ids are asked for, the `id` of an event is `<message>:<n>`. n is a function of token indices, so that any gateway,
any coalescing and a resume agree: the opening events are 0 to 2; a delta is 2 + the number of token events said with it
and before it, the end among them; two closing ones follow. The last event, `message_stop`, has no id: as with OpenAI's
`[DONE]`, whoever comes back gets it again.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from gateway.answer.choice import failure
from gateway.answer.transcript import Transcript
from gateway.anthropic.errors import error_body
from gateway.anthropic.objects import Asked, message, stop, text_block, transcript_of, usage
from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from gateway.pool_client.generation import Generation
from gateway.position import Position
from services.messages import TokenEvent

LAST_OPENING = 2
CLOSING = 2  # numbered events after the last delta


class EventWriter:
    """Writes what comes after event number `after`; -1: all of it. `with_ids` gives each event an `id` line.

    `request_id` names the HTTP request in an error.
    """

    def __init__(
        self,
        asked: Asked,
        transcript: Transcript,
        after: int = -1,
        with_ids: bool = False,
        request_id: str | None = None,
    ) -> None:
        self._asked = asked
        self._transcript = transcript
        self._after = after
        self._request_id = request_id
        self._opened = False
        self._id = b"id: " + asked.id.encode() + b":" if with_ids else None
        self.done = False  # the last event was written

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames that `events` make; b"" while their text is held back.

        Raises ApiError when the message failed and there is nothing to say before that, and where it ended before
        event number `after`.
        """
        assert not self.done
        transcript = self._transcript
        for event in events:
            transcript.add(event)
            if LAST_OPENING + transcript.said <= self._after:
                transcript.take(silent=True)
        error = failure(transcript.end) if transcript.end else None
        frames = [] if self._opened or (error and transcript.said == 1) else self._opening()
        text, _ = transcript.take()
        if text:
            frames.append(self._delta(text))
        said = b"".join(frames)
        if transcript.end is None:
            return said
        if error is None:
            self._check_place()
            said += b"".join(self._closing())
        elif not said:
            raise error
        else:
            said += self.fail(error)
        self.done = True
        return said

    def fail(self, error: ApiError) -> bytes:
        """The event that ends the stream with an error."""
        self.done = True
        return _frame(b"error", orjson.dumps(error_body(error, self._request_id)))

    def _opening(self) -> list[bytes]:
        self._opened = True
        return [
            self._event("message_start", 0, {"message": message(self._asked, None)}),
            self._event("content_block_start", 1, {"index": 0, "content_block": text_block("")}),
            self._event("ping", LAST_OPENING, {}),
        ]

    def _closing(self) -> list[bytes]:
        """Usage is the whole message's, as in every `message_delta`: clients put it over what `message_start` said."""
        last, transcript = LAST_OPENING + self._transcript.said, self._transcript
        told = {"delta": stop(transcript.end), "usage": usage(self._asked, transcript)}
        return [
            self._event("content_block_stop", last + 1, {"index": 0}),
            self._event("message_delta", last + CLOSING, told),
            _frame(b"message_stop", b'{"type":"message_stop"}'),
        ]

    def _check_place(self) -> None:
        last = LAST_OPENING + self._transcript.said + CLOSING
        if self._after > last:
            text = f"'Last-Event-ID' is of event {self._after}, the last one of '{self._asked.id}' is {last}."
            raise ApiError(Kind.INVALID, text, "Last-Event-ID")

    def _delta(self, text: str) -> bytes:
        """Made of bytes made once: this path carries every token."""
        delta = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%b}}' % orjson.dumps(text)
        return _frame(b"content_block_delta", delta, self._id_line(LAST_OPENING + self._transcript.said))

    def _event(self, kind: str, number: int, fields: dict[str, Any]) -> bytes:
        if number <= self._after:
            return b""
        return _frame(kind.encode(), orjson.dumps({"type": kind, **fields}), self._id_line(number))

    def _id_line(self, number: int) -> bytes:
        return b"" if self._id is None else self._id + b"%d\n" % number


def writer(
    generation: Generation, model: ServedModel, position: Position | None, request: Request, with_ids: bool
) -> EventWriter:
    """What writes the events of a message behind `position`. Closes the generation and raises ApiError where no event
    of this message can have that number."""
    plan = generation.plan
    try:
        if position is not None:
            most = LAST_OPENING + plan.max_new_tokens + 1 + CLOSING
            if len(position.said) != 1 or position.said[0] > most:
                raise position.wrong(f"is not the id of an event of this message: <message>:<n>, n at most {most}")
    except ApiError:
        generation.close()
        raise
    after = -1 if position is None else position.said[0]
    asked, name = Asked.of(generation, model), getattr(request.state, "request_id", None)
    return EventWriter(asked, transcript_of(generation, model), after, with_ids, name)


def _frame(kind: bytes, data: bytes, id_line: bytes = b"") -> bytes:
    return b"event: %b\n%bdata: %b\n\n" % (kind, id_line, data)
