"""The streamed answer of an OpenAI server, parsed line by line, without sockets and clocks: the caller has both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson


class StreamError(Exception):
    """The stream is not a whole answer; the message tells why. `status` is the HTTP status that the server answered at
    last, or the code of an error within the stream; 0 if neither ended it."""

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; `id` and `name` are empty if the server gave none."""

    data: str
    id: str = ""
    name: str = ""


class Events:
    """Turns the lines of a `text/event-stream` into events."""

    def __init__(self) -> None:
        self._data: list[str] = []
        self._id = ""
        self._name = ""

    def feed(self, line: bytes) -> Event | None:
        """The event which this line, with or without its end, ends, or None. Comments and other fields are skipped.

        Raises StreamError for a line that is not UTF-8."""
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise StreamError(f"not UTF-8: {line[:200]!r}") from None
        if text:
            name, _, value = text.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif name == "id":
                self._id = value.removeprefix(" ")
            elif name == "event":
                self._name = value.removeprefix(" ")
            return None
        data, id, kind = self._data, self._id, self._name
        self._data, self._id, self._name = [], "", ""
        return Event("\n".join(data), id, kind) if data else None


def position(event_id: str) -> tuple[str, list[int]]:
    """The parts of an event's id `<request>:<i0>.<i1>...`: the request's id, and for each choice opened so far how many
    events (its tokens, its end, and for the last choice the usage) came up to and including this one. Raises
    StreamError for an id of any other form."""
    request, colon, counts = event_id.rpartition(":")
    try:
        if colon:
            return request, [int(count) for count in counts.split(".")]
    except ValueError:
        pass
    raise StreamError(f"an event's id is not <request>:<i0>.<i1>...: {event_id[:200]!r}")


@dataclass(slots=True)
class Call:
    """A call of a tool; `arguments` are JSON, as far as they were received."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """One choice as far as it was received; tokens and log probabilities only if they were requested."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the sampled tokens
    finish_reason: str | None = None
    calls: list[Call] = field(default_factory=list)
    reasoning: str = ""


@dataclass(slots=True)
class StreamedAnswer:
    """The answer as far as it was received, over all the connections of its stream.

    If events have ids, `feed` checks that each event continues where the one before it ended.
    """

    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_tokens: int | None = None  # from the usage chunk, like the next field
    completion_tokens: int | None = None
    done: bool = False
    request: str = ""  # the server's id of the request, from the ids of events
    last_id: str = ""  # of the last event
    chunks: int = 0
    _received: list[int] = field(default_factory=list)
    _before: dict[int, Choice] = field(default_factory=dict)

    def restart(self) -> None:
        """The server forgot the request and sends it again from its first token; what came before must come again."""
        self._before = {
            i: max((choice, self._before.get(i, Choice())), key=lambda c: len(c.text))
            for i, choice in self.choices.items()
        }
        self.choices, self._received, self.request, self.last_id = {}, [], "", ""

    def feed(self, event: Event) -> bool:
        """Add one event to the answer; returns whether it held output: text, reasoning, or a piece of a call.

        Raises StreamError for an error frame, for an event that is no chunk or does not continue where the last one
        ended, and for anything after `[DONE]`.
        """
        if self.done:
            raise StreamError(f"data after [DONE]: {event.data[:200]}")
        if event.data == "[DONE]":
            self._check_repetition()
            self.done = True
            return False
        chunk = parse(event.data)
        try:
            return self._add(event.id, chunk)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # a field is missing, or of another type
            raise StreamError(f"not a chunk ({type(error).__name__}: {error}): {event.data[:200]}") from None

    def _add(self, id: str, chunk: dict[str, Any]) -> bool:
        if id:
            self._continue(id, chunk)
        self.chunks += 1
        if usage := chunk.get("usage"):
            self.prompt_tokens, self.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        return sum(self._extend(part) for part in chunk.get("choices", ())) > 0

    def _continue(self, id: str, chunk: dict[str, Any]) -> None:
        request, counts = position(id)
        # an opening event counts the choices opened so far
        received = self._received + [0] * (len(counts) - len(self._received))
        expected = list(received)
        for choice in chunk.get("choices", ()):
            index, tokens = choice["index"], choice.get("token_ids")
            if not 0 <= index < len(counts):
                raise StreamError(f"{id!r} does not count choice {index}")
            ended = bool(choice.get("finish_reason"))
            new = counts[index] - received[index] if tokens is None else len(tokens) + ended
            expected[index] += max(new, 0)
        if chunk.get("usage") and not chunk["choices"]:
            expected[-1] += 1
        if (request, counts) != (self.request or request, expected):
            raise StreamError(f"after {self.last_id!r} came {id!r} where {self.request}:{expected} was due")
        self.request, self._received, self.last_id = request, counts, id

    def _extend(self, part: dict[str, Any]) -> bool:
        choice = self.choices.setdefault(part["index"], Choice())
        delta = part.get("delta", {})
        text = (delta.get("content") if "delta" in part else part["text"]) or ""
        # it has one of these names, by server
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        choice.text, choice.reasoning = choice.text + text, choice.reasoning + reasoning
        pieces = delta.get("tool_calls") or ()
        for piece in pieces:
            _extend_call(choice.calls, piece)
        choice.token_ids += part.get("token_ids") or ()
        choice.logprobs += _token_logprobs(part.get("logprobs") or {})
        if reason := part.get("finish_reason"):
            if choice.finish_reason:
                raise StreamError(f"choice {part['index']} ended twice")
            choice.finish_reason = reason
        return bool(text or pieces or reasoning)

    def _check_repetition(self) -> None:
        for index, before in self._before.items():
            now = self.choices.get(index, Choice())
            if not now.text.startswith(before.text) or now.token_ids[: len(before.token_ids)] != before.token_ids:
                raise StreamError(f"choice {index} began otherwise than before: {now.text!r}, {before.text!r}")

    def check(self, usage: bool = True) -> None:
        """Raise StreamError unless the answer is whole: each choice has ended, `usage` and `[DONE]` were received."""
        if not self.done:
            raise StreamError("the stream ended without [DONE]")
        if not self.choices:
            raise StreamError("the stream held no choice")
        if unfinished := sorted(i for i, choice in self.choices.items() if choice.finish_reason is None):
            raise StreamError(f"no finish_reason for choices {unfinished}")
        if usage and self.completion_tokens is None:
            raise StreamError("no usage chunk though stream_options asked for one")


def _extend_call(calls: list[Call], piece: dict[str, Any]) -> None:
    """Add a piece of a call, the first of which has its id and name. Raises StreamError for one that does not continue
    the calls so far."""
    index, function = piece["index"], piece["function"]
    if index == len(calls):
        calls.append(Call(piece["id"], function["name"]))
    elif index != len(calls) - 1:
        raise StreamError(f"a piece of call {index} came after {len(calls)} calls")
    calls[index].arguments += function.get("arguments") or ""


def parse(data: str) -> dict[str, Any]:
    """The chunk in an event's data. Raises StreamError for an error frame and for data that is no chunk."""
    try:
        chunk = orjson.loads(data)
    except ValueError:
        raise StreamError(f"not JSON: {data[:200]}") from None
    if not isinstance(chunk, dict):
        raise StreamError(f"not a chunk: {data[:200]}")
    if error := chunk.get("error"):
        detail = error if isinstance(error, dict) else {"message": error}
        code = detail.get("code")
        raise StreamError(f"error frame: {detail.get('message', detail)}", code if isinstance(code, int) else 0)
    return chunk


def _token_logprobs(logprobs: dict[str, Any]) -> Iterator[float]:
    """The log probabilities of a completion (`token_logprobs`) or a chat (`content`)."""
    yield from logprobs.get("token_logprobs") or (entry["logprob"] for entry in logprobs.get("content") or ())
