"""The server-sent events of completions and chat completions.

A plain stream has OpenAI's frames: every block begins with `data: ` and no event has an `id` line, because common
clients strip a leading `data: ` and parse the rest of the block as JSON. In a resumable stream an `id` line precedes
each `data` line.

The `id` of an event is `<request>:<i0>.<i1>...`: for each choice, the number of its token events (including the end)
in this event and the earlier ones. It does not depend on how tokens are grouped into events or on the gateway. Opening
events, which contain no token, list only the choices opened so far; the usage chunk counts as one more event of the
last choice. So no two events of a stream have the same id. Content, reasoning and calls of the same tokens are in one
chunk.
"""

from __future__ import annotations

import orjson

from gateway.answer.choice import Choice, Delta
from gateway.answer.plan import Plan
from gateway.errors import ApiError
from gateway.http.headers import Position
from gateway.model import ServedModel
from gateway.openai.answer import Answer
from gateway.pool_client.following import Generation
from services.messages import TokenEvent

DONE = b"data: [DONE]\n\n"
NULL = b"null"


def error_frame(error: ApiError) -> bytes:
    """An error within a stream; no `[DONE]` follows."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


class ChunkWriter:
    """Writes the chunks of completions and chat completions. Their constant parts are encoded once, because every token
    takes this path.

    `opened`: the number of choices whose opening events the client has received. `with_ids`: events have an `id`.
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
            "model": plan.model or answer.model.name,
        }
        if plan.service_tier is not None:
            head["service_tier"] = plan.service_tier
        self._id = b"id: " + answer.request.encode() + b":" if with_ids else None
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if plan.include_usage else b"}\n\n"
        self._opened: int | None = opened  # None once all choices are opened
        self.done = False  # whether the last frame has been written

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames of `events`, with `[DONE]` or an error after the last event; b"" while their text is held back.

        Raises ApiError if a choice failed and there is no frame before the failure.
        """
        assert not self.done
        touched = self._answer.add(events)
        frames = self._opening()
        opening = len(frames)
        for choice in touched:
            delta = choice.take(allow_empty=self._with_token_ids)
            if delta is not None:
                frames.append(self._frame(self._chunk(choice, delta), self._tail_of(choice)))
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
        """Chat: a chunk with the role for each choice. Completions: a chunk with the prompt's tokens, if requested."""
        if self._opened is None:
            return []
        frames = []
        for index in range(self._opened, len(self._answer.choices)):
            head, tail = b'{"index":%d,' % index, self._tail_of(self._answer.choices[index])
            prompt = orjson.dumps(self._answer.plan.prompt_of(index)) if self._with_token_ids else b""
            if self._chat:
                chunk = head + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
                chunk += b',"token_ids":[]}' if prompt else b"}"
                top = b',"prompt_token_ids":' + prompt if prompt else b""
                frames.append(self._frame(chunk, top + tail, index + 1))
            elif prompt:
                chunk = head + b'"text":"","logprobs":null,"finish_reason":null,"token_ids":[],"prompt_token_ids":'
                frames.append(self._frame(chunk + prompt + b"}", tail, index + 1))
        self._opened = None
        return frames

    def _chunk(self, choice: Choice, delta: Delta) -> bytes:
        if delta.parts is not None:
            said = b'"delta":' + orjson.dumps(self._answer.delta(choice, delta))
        else:
            text = orjson.dumps(self._answer.text(choice, delta))
            said = b'"delta":{"content":' + text + b"}" if self._chat else b'"text":' + text
        logprobs = self._answer.logprobs(choice, delta)
        reason = NULL
        if delta.finish_reason is not None:
            reason = b'"%s","stop_reason":%s' % (delta.finish_reason.encode(), orjson.dumps(choice.stop_reason))
        return b'{"index":%d,%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice.index,
            said,
            NULL if logprobs is None else orjson.dumps(logprobs),
            reason,
            b',"token_ids":' + orjson.dumps(delta.tokens) if self._with_token_ids else b"",
        )

    def _closing(self) -> list[bytes]:
        """The usage chunk, if requested and not yet received, and the end of the stream."""
        last = self._answer.choices[-1]
        if not self._include_usage or last.sent > last.added:
            return [DONE]
        last.sent += 1
        usage = b',"usage":' + orjson.dumps(self._answer.usage()) + b"}\n\n"
        return [self._frame(b"", usage), DONE]

    def _tail_of(self, choice: Choice) -> bytes:
        """The end of a chunk about `choice`."""
        if not self._continuous_usage:
            return self._tail
        return b',"usage":' + orjson.dumps(self._answer.usage_so_far(choice)) + b"}\n\n"

    def _frame(self, choices: bytes, tail: bytes, opened: int | None = None) -> bytes:
        return b"".join((self._id_line(opened), self._head, choices, b"]", tail))

    def _id_line(self, opened: int | None) -> bytes:
        if self._id is None:
            return b""
        return self._id + b".".join(b"%d" % choice.sent for choice in self._answer.choices[:opened]) + b"\n"


def check_position(position: Position, plan: Plan) -> None:
    """Raises ApiError if no event of a stream with this plan can have the id `position`.

    A position after the tokens that exist so far is accepted, up to the maximum number of tokens: the pool's server
    may have lost tokens that the client has, and these will be generated again.
    """
    counts = position.counts
    opening = plan.chat or plan.return_token_ids
    if len(counts) != plan.choices and not (opening and len(counts) < plan.choices and not any(counts)):
        raise position.wrong(f"counts {len(counts)} choices, the request has {plan.choices}")
    for index, count in enumerate(counts):
        most = plan.max_new_tokens + 1 + (index == plan.choices - 1)
        if count > most:
            raise position.wrong(f"counts {count} events of choice {index}, there can be {most} at most")


def chunk_writer(generation: Generation, model: ServedModel, position: Position | None, with_ids: bool) -> ChunkWriter:
    """The writer of the events after `position`. Raises ApiError if the stream has no such position."""
    if position is not None:
        check_position(position, generation.plan)
    counts = position.counts if position else ()
    return ChunkWriter(Answer(generation.plan, model, generation.request, counts), len(counts), with_ids)
