"""What agents send beside their conversation, as Codex does in Responses and Claude Code in Messages: it is answered,
or refused by its name with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.messages import CountTokensRequest, MessageRequest
from gateway.schemas.responses import ResponseRequest

SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
CODEX: dict[str, Any] = {
    "model": "a",
    "instructions": "You are an agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: read only."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAA"},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "a.py"}]},
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "One file."}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read it."}]},
    ],
    "tools": [SHELL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "service_tier": "priority",
    "prompt_cache_key": "0190-thread",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "0190"},
}
CACHED = {"type": "ephemeral", "ttl": "1h"}
CLAUDE_CODE: dict[str, Any] = {
    "model": "a",
    "max_tokens": 32_000,
    "system": [
        {"type": "text", "text": "You are an agent."},
        {"type": "text", "text": "Be brief.", "cache_control": CACHED},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>…</system-reminder>"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
                {"type": "text", "text": "I look."},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "Bash",
                    "input": {"command": "ls"},
                    "cache_control": CACHED,
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "a.py", "cache_control": CACHED}],
                    "cache_control": CACHED,
                }
            ],
        },
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Runs a command.",
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
            "cache_control": CACHED,
            "eager_input_streaming": True,
        }
    ],
    "metadata": {"user_id": "user_0190_session_0191"},
    "thinking": {"type": "enabled", "budget_tokens": 31_999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "temperature": 1,
    "stream": True,
}


def test_codex_is_answered() -> None:
    fields = validate(ResponseRequest, CODEX)
    assert [message.role for message in fields.messages] == [
        *("developer", "user", "assistant", "assistant", "tool", "assistant", "user")
    ]
    assert fields.template_variables == {"reasoning_effort": "medium", "enable_thinking": True, "verbosity": "low"}
    assert [tool.name for tool in fields.tool_use.tools] == ["shell"]


def test_claude_code_is_answered() -> None:
    fields = validate(MessageRequest, CLAUDE_CODE)
    assert [turn.role for turn in fields.turns] == ["system", "user", "assistant", "tool"]
    assert fields.thinking_budget == 31_999
    assert fields.template_variables == {"enable_thinking": True, "reasoning_effort": "medium"}
    counted = ("model", "system", "messages", "tools", "thinking", "context_management", "output_config")
    validate(CountTokensRequest, {name: CLAUDE_CODE[name] for name in counted})


PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "a"}}
LARK = "follows a 'regex' alone: leave the 'format' out, and describe it in the tool's 'description'"
FUNCTIONS = "takes tools of type 'function' and 'custom' alone: leave it out, or declare one of these, which the client"
ITEMS = "custom_tool_call, custom_tool_call_output, reasoning alone: leave the item out, or write it as"
OF_CODEX: list[tuple[dict[str, Any], str, str, str]] = [
    ({"tools": [SHELL, PATCH]}, "tools[1].format.syntax", "'lark'", LARK),
    ({"tools": [{"type": "local_shell"}]}, "tools", "'local_shell'", FUNCTIONS),
    ({"tools": [{"type": "web_search", "external_web_access": False}]}, "tools", "'web_search'", FUNCTIONS),
    ({"tools": [{"type": "namespace", "name": "mcp", "tools": [SHELL]}]}, "tools", "'namespace'", FUNCTIONS),
    ({"input": [{"type": "custom_tool_call", "call_id": "a"}]}, "input[0].name", "'custom_tool_call'", "must have"),
    ({"input": [{"type": "local_shell_call", "call_id": "a"}]}, "input[0].type", "'local_shell_call'", ITEMS),
    ({"input": [{"type": "compaction", "encrypted_content": "a"}]}, "input[0].type", "'compaction'", ITEMS),
    ({"text": {"verbosity": "none"}}, "text.verbosity", "'low', 'medium' or 'high'", ""),
    ({"reasoning": {"max_tokens": 100}}, "reasoning.max_tokens", "Unknown", ""),  # not of OpenAI's API
]
CLEARS = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 100}}
OF_CLAUDE_CODE: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools",
        "'web_search_20250305'",
        "'custom' alone",
    ),
    (
        {"context_management": {"edits": [CLEARS]}},
        "context_management",
        "'clear_tool_uses_20250919'",
        "leave the edit out",
    ),
    (
        {
            "context_management": {
                "edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]
            }
        },
        "context_management",
        "'clear_thinking_20251015'",
        "leave the edit out",
    ),
    ({"context_management": {"clear": True}}, "context_management", "not supported", "leave it out"),
    ({"context_management": {"edits": 1}}, "context_management", "not supported", "leave it out"),
    ({"context_management": "a"}, "context_management", "not supported", "leave it out"),
]


@pytest.mark.parametrize(
    ("model", "body", "case"),
    [(ResponseRequest, CODEX, case) for case in OF_CODEX]
    + [(MessageRequest, CLAUDE_CODE, case) for case in OF_CLAUDE_CODE],
    ids=lambda value: value[2] if isinstance(value, tuple) else "",
)
def test_what_is_not_supported_is_refused_by_name(
    model: type[Any], body: dict[str, Any], case: tuple[dict[str, Any], str, str, str]
) -> None:
    fields, param, named, advice = case
    with pytest.raises(ApiError) as caught:
        validate(model, body | fields)
    assert caught.value.param == param
    assert named in str(caught.value)
    assert advice in str(caught.value)


CALL = {"id": "a", "type": "function", "extra_content": {}, "function": {"name": "f", "arguments": "{}", "strict": 1}}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": CACHED}]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "b"},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": CACHED}],
    "cache_control": CACHED,
}


def test_what_clients_of_several_servers_send_to_chat() -> None:
    fields = validate(ChatRequest, CHAT)
    assert fields.messages[1].for_template()["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
    ]


@pytest.mark.parametrize("field", ["thinking", "enable_thinking"])
def test_fields_of_other_servers_are_refused_with_the_one_that_does_the_same(field: str) -> None:
    with pytest.raises(ApiError, match=f"'{field}': is not supported by this server; use 'chat_template_kwargs'"):
        validate(ChatRequest, CHAT | {field: True})


def test_tools_and_blocks_as_anthropic_describes_them() -> None:
    tool = {"type": None, "name": "f", "input_schema": {"type": "object"}, "input_examples": [{"a": 1}]}
    text = {"type": "text", "text": "a", "citations": []}
    fields = validate(
        MessageRequest, CLAUDE_CODE | {"tools": [tool], "messages": [{"role": "user", "content": [text]}]}
    )
    assert [made.name for made in fields.tool_use.tools] == ["f"]
    with pytest.raises(ApiError, match="use 'output_config'"):
        validate(MessageRequest, CLAUDE_CODE | {"output_format": {"type": "json_schema"}})


@pytest.mark.parametrize("part", ["image_url", "file", "input_audio"])
def test_a_part_that_is_not_text_is_named(part: str) -> None:
    with pytest.raises(ApiError, match=f"has a part of type '{part}'; this server takes text alone"):
        validate(ChatRequest, CHAT | {"messages": [{"role": "user", "content": [{"type": part}]}]})


@pytest.mark.parametrize("context", [None, {}, {"edits": []}, {"edits": None}])
def test_no_edits_of_the_context_are_none(context: Any) -> None:
    validate(MessageRequest, CLAUDE_CODE | {"context_management": context})
