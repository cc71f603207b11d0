"""Calls in the history of a chat as a chat template takes them.

Templates differ: some take the arguments as objects and some as text, some write one call of a message alone or refuse
several, and some write none though they name them. What a template does is tried with a small conversation.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from services.text.tool_fallback import RESULT

Chat = list[dict[str, Any]]
FUNCTION = {"name": "a", "description": "a", "parameters": {"type": "object", "properties": {}}}
SAID = tuple(secrets.token_hex(16) for _ in range(2))  # texts that no template has


@dataclass(frozen=True, slots=True)
class Written:
    """How a template writes calls. `texts`: it takes arguments as text. `together`: it writes several of a message."""

    texts: bool
    together: bool

    def of(self, messages: Sequence[dict[str, Any]]) -> Chat:
        """`messages` as the template takes them."""
        made = list(messages) if self.together else [part for turn in _turns(messages) for part in _one_by_one(turn)]
        return list(map(_with_texts, made)) if self.texts else made


def written_by(render: Callable[[Chat], str]) -> Written | None:
    """How the template writes calls, also beside a content; None if it does not."""
    for texts in (False, True):
        for together in (True, False):
            written = Written(texts, together)
            if all(_has_all(render, written.of(_chat(content))) for content in ("", "a")):
                return written
    return None


def _chat(content: str) -> Chat:
    """A conversation with two calls."""
    ids = ("a00000000", "b00000000")
    calls = [
        {"id": id, "type": "function", "function": {"name": "a", "arguments": {"a": said}}}
        for id, said in zip(ids, SAID, strict=True)
    ]
    results = [{"role": RESULT, "content": "a", "name": "a", "tool_call_id": id} for id in ids]
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": content, "tool_calls": calls}, *results]


def _has_all(render: Callable[[Chat], str], chat: Chat) -> bool:
    try:
        text = render(chat)
    except ValueError:
        return False
    return all(said in text for said in SAID)


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """A copy of the message with the arguments of its calls as text."""
    calls = message.get("tool_calls")
    return message | {"tool_calls": list(map(_with_text, calls))} if calls else message


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": text}}


def _turns(messages: Sequence[dict[str, Any]]) -> Iterator[Chat]:
    """Each message with the results that follow it."""
    turn: Chat = []
    for message in messages:
        if turn and message["role"] != RESULT:
            yield turn
            turn = []
        turn.append(message)
    yield turn


def _one_by_one(turn: Chat) -> Chat:
    """Each call of a message in one of its own, with its result after it."""
    message, *results = turn
    calls = message.get("tool_calls") or ()
    if len(calls) < 2:
        return turn
    made: Chat = []
    for call in calls:
        mine = [result for result in results if "tool_call_id" in result and result["tool_call_id"] == call.get("id")]
        mine = mine or [result for result in results if "tool_call_id" not in result][:1]
        results = [result for result in results if all(result is not each for each in mine)]
        made += [{**message, "tool_calls": [call]}, *mine]
        message = {"role": message["role"], "content": ""}
    return [*made, *results]
