"""Tools for chat templates that do not know them: their descriptions, calls and results become text of messages.

The format is the one that SmolLM2-Instruct was trained on: calls are a JSON list in `<tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

RESULT = "tool"  # the role
INSTRUCTIONS = """\
You can call functions. These are the functions, as JSON:
<tools>{tools}</tools>

To call one or more functions, write {calls} and nothing else, in this form:
{form}
The results of the calls will follow{place}. If no function is of use, answer without a call."""
NAME, ARGUMENTS = "the name of a function", {"the name of an argument": "its value"}
FORM = f"<tool_call>{json.dumps([{'name': NAME, 'arguments': ARGUMENTS}])}</tool_call>"
RESPONSE = "<tool_response>\n{}\n</tool_response>"


def has_calls(message: Mapping[str, Any]) -> bool:
    """Whether a message has calls, or the result of one."""
    return bool(message.get("tool_calls")) or message["role"] == RESULT


def with_instructions(
    messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]], system: bool, form: str = ""
) -> list[dict[str, Any]]:
    """`messages` with instructions to call `tools` in this form, and to write nothing else; without one, in that of
    this module. They become the end of the system's message, or one before the others; without `system`, which a
    template may not take, the beginning of the first message."""
    calls, place = ("the calls", "") if form else ("a JSON list of calls", " in <tool_response>")
    told = INSTRUCTIONS.format(tools=_json(tools), form=form or FORM, calls=calls, place=place)
    first, *rest = messages
    if first["role"] == "system":
        return [first | {"content": _joined(first.get("content"), told)}, *rest]
    if system:
        return [{"role": "system", "content": told}, *messages]
    return [first | {"content": _joined(told, first.get("content") or "")}, *rest]


def with_tools_as_text(
    messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]], system: bool = True
) -> list[dict[str, Any]]:
    """`messages` with the roles `system`, `user` and `assistant` alone, and contents that are text. `messages` and
    `tools` are as for chat templates; without `tools`, as where only the history has calls, there are no instructions.
    `system`: see `with_instructions`. Results become a message of the user, together with further results and the
    user's message that follow.
    """
    made = with_instructions(messages, tools, system) if tools else list(messages)
    texts: list[dict[str, Any]] = []
    results = False  # whether the last of `texts` ends with results
    for message in made:
        result = message["role"] == RESULT
        text = _result(message) if result else _called(message)
        if results and text["role"] == "user":
            texts[-1] |= {"content": _joined(texts[-1]["content"], text["content"], "\n")}
        else:
            texts.append(text)
        results = result
    return texts


def _result(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": RESPONSE.format(message.get("content") or "")}


def _called(message: dict[str, Any]) -> dict[str, Any]:
    """Return `message` with its calls written into its content."""
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    if not functions:
        return rest
    calls = [{"name": function["name"], "arguments": function["arguments"]} for function in functions]
    return rest | {"content": _joined(message.get("content"), f"<tool_call>{_json(calls)}</tool_call>", "\n")}


def _joined(first: str | None, second: str, separator: str = "\n\n") -> str:
    return f"{first}{separator}{second}" if first else second


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
