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

To call one or more functions, write a JSON list of calls and nothing else, in this form:
<tool_call>[{{"name": "the name of a function", "arguments": {{"the name of an argument": "its value"}}}}]</tool_call>
The results of the calls will follow in <tool_response>. If no function is of use, answer without a call."""
RESPONSE = "<tool_response>\n{}\n</tool_response>"


def has_calls(message: Mapping[str, Any]) -> bool:
    """Whether a message has calls, or the result of one."""
    return bool(message.get("tool_calls")) or message["role"] == RESULT


def with_tools_as_text(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`messages` with the roles `system`, `user` and `assistant` alone, and contents that are text. `messages` and
    `tools` are as for chat templates.

    The instructions become the end of the first message if that is the system's, otherwise a system message; without
    `tools`, as where only the history has calls, there are none. Results
    become a message of the user, together with further results and the user's message that follow.
    """
    made: list[dict[str, Any]] = []
    instructions = INSTRUCTIONS.format(tools=_json(tools))
    if not tools:
        made.append(messages[0])
    elif messages[0]["role"] == "system":
        made.append(messages[0] | {"content": _joined(messages[0].get("content"), instructions)})
    else:
        made += [{"role": "system", "content": instructions}, messages[0]]
    made += messages[1:]
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
