"""A streamed answer of an OpenAI server, read line by line. No sockets and no clocks: the caller has both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class StreamError(Exception):
    """The stream is not a whole answer; the message says what is wrong with it."""


class Events:
    """Lines of a `text/event-stream` in, the data of whole events out."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def feed(self, line: bytes) -> str | None:
        """The data of the event that this line ends, if it ends one. Comments and other fields are skipped."""
        text = line.decode("utf-8").rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = self._data, []
        return "\n".join(data) if data else None


@dataclass(slots=True)
class Answer:
    """What a stream has held so far."""

    text: dict[int, str] = field(default_factory=dict)  # of each choice
    finish_reasons: dict[int, str] = field(default_factory=dict)
    prompt_tokens: int | None = None  # from the usage chunk, as is the next
    completion_tokens: int | None = None
    done: bool = False

    def feed(self, data: str) -> bool:
        """Take in one event; true if it brought text.

        Raises StreamError for an error frame, for what is no chunk, and for anything after `[DONE]`.
        """
        if self.done:
            raise StreamError(f"data after [DONE]: {data[:200]}")
        if data == "[DONE]":
            self.done = True
            return False
        return self._feed_chunk(_parse(data))

    def _feed_chunk(self, chunk: dict[str, Any]) -> bool:
        if chunk.get("error"):
            raise StreamError(f"error frame: {_message(chunk['error'])}")
        if usage := chunk.get("usage"):
            self.prompt_tokens, self.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        brought = False
        for index, text, reason in _choices(chunk):
            self.text[index] = self.text.get(index, "") + text
            brought |= bool(text)
            if reason:
                self.finish_reasons[index] = reason
        return brought

    def check(self) -> None:
        """Raise StreamError unless the answer is whole: each choice finished, usage told, `[DONE]` seen."""
        if not self.done:
            raise StreamError("the stream ended without [DONE]")
        if not self.text:
            raise StreamError("the stream held no choice")
        if unfinished := sorted(self.text.keys() - self.finish_reasons.keys()):
            raise StreamError(f"no finish_reason for choices {unfinished}")
        if self.completion_tokens is None:
            raise StreamError("no usage chunk though stream_options asked for one")


def _parse(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        raise StreamError(f"not JSON: {data[:200]}") from None
    if not isinstance(chunk, dict):
        raise StreamError(f"not a chunk: {data[:200]}")
    return chunk


def _choices(chunk: dict[str, Any]) -> Iterator[tuple[int, str, str | None]]:
    """Index, new text and finish reason of each choice, of chat (`delta`) or completions (`text`)."""
    for choice in chunk.get("choices", ()):
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        yield choice["index"], text or "", choice.get("finish_reason")


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
