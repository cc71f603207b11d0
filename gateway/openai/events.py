"""Server-sent events of an answer.

A plain stream has OpenAI's frames: `data: ` begins every block, and no event has an `id` line, because common clients
strip a leading `data: ` and parse the rest of the block as JSON. A stream that can be resumed has an `id` line before
each `data` line.

The `id` of an event is `<request>:<i0>.<i1>...`, for each choice how many of its token events (the end is one) it and
the events before it have said: no counter, so that coalescing and another gateway agree on it. Opening events, which
say no token, have the numbers of the choices opened so far alone; the usage chunk counts as one more event of the last
choice. So no two events of a stream have the same id.
"""

from __future__ import annotations

import orjson

from gateway.answer.choice import Choice, Piece
from gateway.errors import ApiError
from gateway.openai.answer import Answer
from services.messages import TokenEvent

DONE = b"data: [DONE]\n\n"
NULL = b"null"


def error_frame(error: ApiError) -> bytes:
    """An error in mid-stream; no `[DONE]` follows."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


class SseWriter:
    """Writes the chunks of chat and completions. Their constant parts are bytes made once: this path carries every
    token.

    `opened` counts the choices whose opening events the client has had already; `with_ids` gives each event its `id`.
    """

    def __init__(self, answer: Answer, opened: int = 0, with_ids: bool = False) -> None:
        plan = answer.plan
        self._answer = answer
        self._chat = plan.chat
        self._with_token_ids = plan.return_token_ids
        self._include_usage = plan.include_usage
        self._continuous_usage = plan.include_usage and plan.continuous_usage
        head = {
            "id": answer.request,
            "object": "chat.completion.chunk" if plan.chat else "text_completion",
            "created": plan.created,
            "model": answer.model.name,
        }
        if plan.service_tier is not None:
            head["service_tier"] = plan.service_tier
        self._id = b"id: " + answer.request.encode() + b":" if with_ids else None
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if plan.include_usage else b"}\n\n"
        self._opened: int | None = opened  # None once all are
        self.done = False  # the last frame was written

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames that `events` make, `[DONE]` or an error after the last; b"" while their text is held back.

        Raises ApiError when a choice failed and there is nothing to say before that.
        """
        assert not self.done
        touched = self._answer.add(events)
        frames = self._opening()
        opening = len(frames)
        for choice in touched:
            piece = choice.take(silent=self._with_token_ids)
            if piece is not None:
                frames.append(self._frame(self._said(choice, piece), self._tail_of(choice)))
        if self._answer.error is not None:
            self.done = True
            if len(frames) == opening:
                raise self._answer.error
            frames.append(error_frame(self._answer.error))
        elif self._answer.ended:
            self.done = True
            frames += self._closing()
        return b"".join(frames)

    def fail(self, error: ApiError) -> bytes:
        """The frame that ends the stream with an error."""
        self.done = True
        return error_frame(error)

    def _opening(self) -> list[bytes]:
        """Chat: a chunk with the role for each choice. Completions have none, but the prompt if it was asked for."""
        if self._opened is None:
            return []
        frames = []
        for index in range(self._opened, len(self._answer.choices)):
            head, tail = b'{"index":%d,' % index, self._tail_of(self._answer.choices[index])
            prompt = orjson.dumps(self._answer.plan.prompt_of(index)) if self._with_token_ids else b""
            if self._chat:
                said = head + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
                said += b',"token_ids":[]}' if prompt else b"}"
                top = b',"prompt_token_ids":' + prompt if prompt else b""
                frames.append(self._frame(said, top + tail, index + 1))
            elif prompt:
                said = head + b'"text":"","logprobs":null,"finish_reason":null,"token_ids":[],"prompt_token_ids":'
                frames.append(self._frame(said + prompt + b"}", tail, index + 1))
        self._opened = None
        return frames

    def _said(self, choice: Choice, piece: Piece) -> bytes:
        text = orjson.dumps(self._answer.text(choice, piece))
        logprobs = self._answer.logprobs(choice, piece)
        return b'{"index":%d,%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice.index,
            b'"delta":{"content":' + text + b"}" if self._chat else b'"text":' + text,
            NULL if logprobs is None else orjson.dumps(logprobs),
            NULL if piece.finish_reason is None else b'"' + piece.finish_reason.encode() + b'"',
            b',"token_ids":' + orjson.dumps(piece.tokens) if self._with_token_ids else b"",
        )

    def _closing(self) -> list[bytes]:
        """The usage chunk, where it is wanted and was not said yet, and the end of the stream."""
        last = self._answer.choices[-1]
        if not self._include_usage or last.sent > last.added:
            return [DONE]
        last.sent += 1
        usage = b',"usage":' + orjson.dumps(self._answer.usage()) + b"}\n\n"
        return [self._frame(b"", usage), DONE]

    def _tail_of(self, choice: Choice) -> bytes:
        """The end of a chunk that says something of `choice`."""
        if not self._continuous_usage:
            return self._tail
        return b',"usage":' + orjson.dumps(self._answer.usage_so_far(choice)) + b"}\n\n"

    def _frame(self, choices: bytes, tail: bytes, opened: int | None = None) -> bytes:
        return b"".join((self._id_line(opened), self._head, choices, b"]", tail))

    def _id_line(self, opened: int | None) -> bytes:
        if self._id is None:
            return b""
        return self._id + b".".join(b"%d" % choice.sent for choice in self._answer.choices[:opened]) + b"\n"
