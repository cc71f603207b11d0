"""Server-sent events of an answer.

The `id` of an event is `<request>:<i0>.<i1>...`, for each choice how many of its token events (the end is one) it and
the events before it have said: no counter, so that coalescing and another gateway agree on it.
"""

from __future__ import annotations

import orjson

from gateway.answer import Answer
from gateway.choice import Choice, Piece
from gateway.errors import ApiError
from services.messages import TokenEvent

DONE = b"data: [DONE]\n\n"
NULL = b"null"


def error_frame(error: ApiError) -> bytes:
    """An error in mid-stream; no `[DONE]` follows."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


class SseWriter:
    """Writes chunks. Their constant parts are bytes made once: this path carries every token."""

    def __init__(self, answer: Answer) -> None:
        ticket = answer.ticket
        self._answer = answer
        self._chat = ticket.chat
        self._with_ids = ticket.return_token_ids
        self._include_usage = ticket.include_usage
        head = {
            "id": answer.request,
            "object": "chat.completion.chunk" if ticket.chat else "text_completion",
            "created": answer.created,
            "model": answer.model.name,
        }
        self._id = b"id: " + answer.request.encode() + b":"
        self._head = b"\ndata: " + orjson.dumps(head)[:-1]
        self._tail = b',"usage":null}\n\n' if ticket.include_usage else b"}\n\n"
        self._begun = False

    @property
    def done(self) -> bool:
        return self._answer.ended

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames that `events` make, `[DONE]` after the last; b"" while their text is held back.

        Raises ApiError when a choice failed; what was to be said before is dropped with it.
        """
        touched = self._answer.add(events)
        frames = [] if self._begun else self._opening()
        self._begun = True
        for choice in touched:
            piece = choice.take(silent=self._with_ids)
            if piece is not None:
                frames.append(self._frame(self._said(choice, piece)))
        if self.done:
            if self._include_usage:
                usage = b',"usage":' + orjson.dumps(self._answer.usage()) + b"}\n\n"
                frames.append(self._frame(b"", usage))
            frames.append(DONE)
        return b"".join(frames)

    def _opening(self) -> list[bytes]:
        """Chat: a chunk with the role for each choice. Completions have none, but the prompt if it was asked for."""
        frames = []
        for choice in self._answer.choices:
            head = b'{"index":%d,' % choice.index
            prompt = orjson.dumps(self._answer.prompt_of(choice)) if self._with_ids else b""
            if self._chat:
                said = head + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
                said += b',"token_ids":[]}' if prompt else b"}"
                top = b',"prompt_token_ids":' + prompt if prompt else b""
                frames.append(self._frame(said, top + self._tail))
            elif prompt:
                said = head + b'"text":"","logprobs":null,"finish_reason":null,"token_ids":[],"prompt_token_ids":'
                frames.append(self._frame(said + prompt + b"}"))
        return frames

    def _said(self, choice: Choice, piece: Piece) -> bytes:
        text = orjson.dumps(piece.text)
        logprobs = self._answer.logprobs(choice, piece)
        return b'{"index":%d,%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice.index,
            b'"delta":{"content":' + text + b"}" if self._chat else b'"text":' + text,
            NULL if logprobs is None else orjson.dumps(logprobs),
            NULL if piece.finish_reason is None else b'"' + piece.finish_reason.encode() + b'"',
            b',"token_ids":' + orjson.dumps(piece.tokens) if self._with_ids else b"",
        )

    def _frame(self, choices: bytes, tail: bytes | None = None) -> bytes:
        indices = b".".join(b"%d" % choice.sent for choice in self._answer.choices)
        return b"".join((self._id, indices, self._head, b',"choices":[', choices, b"]", tail or self._tail))
