"""A conversation of items as the turns that chat templates know.

A response has an item for each thing that was said, a chat one message for each turn: calls of functions belong to the
assistant's message before them, and reasoning to the one behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.schemas.chat import Message


def turns(items: Sequence[Message]) -> list[Message]:
    """`items`, one message for each, with those of one turn of the assistant put together."""
    made: list[Message] = []
    reasoning = ""
    for item in items:
        if _only_reasons(item):
            reasoning += item.reasoning_content or ""
            continue
        before = made[-1] if made else None
        if item.tool_calls and not item.text and not reasoning and before and before.role == "assistant":
            calls = [*(before.tool_calls or []), *item.tool_calls]
            made[-1] = before.model_copy(update={"tool_calls": calls})
        else:
            keeps = reasoning and item.role == "assistant"
            made.append(item.model_copy(update={"reasoning_content": reasoning}) if keeps else item)
        reasoning = ""
    return made or [Message(role="assistant", reasoning_content=reasoning)]


def _only_reasons(item: Message) -> bool:
    return item.reasoning_content is not None
