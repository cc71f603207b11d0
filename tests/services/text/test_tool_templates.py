"""Templates receive tools, calls and results as from transformers. Those that do not know tools get text instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.text import ChatTemplate, Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
# small templates in the styles of several families
HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role != 'system' or not tools %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for tool_call in message.tool_calls %}
            {%- set call = tool_call.function if tool_call.function else tool_call %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not tools is none %}
    {{- 'Environment: ipython\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception('One call at once.') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if loop.last and tools is not none %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.function.items() %}
                    {{- '"' + key + '": ' + (value | tojson) + (', ' if not loop.last else '}}') }}
                {%- endfor %}
                {{- ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('An id has 9 characters.') }}{%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (', ' if not loop.last else ']') }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
KNOWING = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL}
CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "né 🐳"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather <now>.", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]


def call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


USER: dict[str, Any] = {"role": "user", "content": "Weather?"}
CALLED: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call("abcdefghi", "weather", city="é")]}
RESULT: dict[str, Any] = {"role": "tool", "content": '{"rain": true}', "tool_call_id": "abcdefghi"}
CHATS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER, CALLED, RESULT],
    [USER, CALLED, RESULT, {"role": "assistant", "content": "It rains."}, USER],
]


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "none"])
@pytest.mark.parametrize("family", KNOWING)
def test_tools_are_rendered_as_in_transformers(family: str, tools: Any, byte_level: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    file, template = str(byte_level / "tokenizer.json"), KNOWING[family]
    theirs = PreTrainedTokenizerFast(tokenizer_file=file, chat_template=template, **SPECIAL)
    ours = ChatTemplate(template, SPECIAL)
    assert ours.uses_tools
    for chat in CHATS:
        want = theirs.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
        assert ours.apply(chat, tools=tools) == want
        assert ("weather" in want) == (tools is not None or CALLED in chat)


FIRST = (
    "{{ tools }}"
    "{% for m in messages %}{{ (m.tool_calls[0].function if m.tool_calls else m.content) | tojson }}{% endfor %}"
)


@pytest.mark.parametrize("source", [LLAMA, FIRST], ids=["refuses two calls", "writes the first one"])
def test_a_template_for_one_call_gets_calls_one_by_one(source: str) -> None:
    calls = [call(id, "weather", city=id) for id in ("called 1", "called 2", "called 3")]
    results = [{"role": "tool", "content": f"told {id}", "tool_call_id": f"called {id}"} for id in (2, 1, 3)]
    two = {"role": "assistant", "content": "", "tool_calls": calls}
    order = ["called 1", "told 1", "called 2", "told 2", "called 3", "told 3", "Weather?"]
    without_ids = [{"role": "tool", "content": f"told {id}"} for id in (1, 2, 3)]
    for told in (results, without_ids):
        text = ChatTemplate(source, SPECIAL).apply([USER, two, *told, USER], tools=TOOLS)
        places = [text.rindex(each) for each in order]
        assert places == sorted(places)


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning", "thought"])
def test_templates_get_the_reasoning_by_the_name_that_they_know(name: str) -> None:
    chat = [USER, {"role": "assistant", "content": "It rains.", "reasoning_content": "So."}]
    template = ChatTemplate(
        "{% for m in messages %}{% if m." + name + " %}[{{ m." + name + " }}]{% endif %}{% endfor %}", {}
    )
    assert template.apply(chat) == "[So.]"
    assert ChatTemplate("{{ messages[1]['" + name + "'] }}", {}).apply(chat) == "So."


def test_a_template_that_takes_reasoning_or_content_before_a_call_gets_both_as_one() -> None:
    source = (  # as GPT-OSS's
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}"
        "{% endif %}{% if m.tool_calls %}analysis {{ m.content or m.thinking }} call {{ m.tool_calls[0].function }}"
        "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )
    chat = [USER, {**CALLED, "content": "I look.", "reasoning_content": "Hm."}, RESULT]
    assert ChatTemplate(source, {}).apply(chat).startswith("Weather?;analysis Hm.\n\nI look. call ")
    chat[1] = {**CALLED, "reasoning_content": "Hm."}
    assert ChatTemplate(source, {}).apply(chat).startswith("Weather?;analysis Hm. call ")


def test_a_template_that_needs_a_description_gets_an_empty_one() -> None:
    line = "{% for tool in tools %}// {{ tool.function.description + '|' + tool.function.name }}\n{% endfor %}"
    bare, told = ({"type": "function", "function": f} for f in ({"name": "a"}, {"name": "b", "description": "B."}))
    chat = [{"role": "user", "content": "Hi"}]
    assert ChatTemplate(line, {}).apply(chat, tools=[bare, told]) == "// |a\n// B.|b\n"
    asks = "{% for tool in tools %}{{ tool.function.description is defined }}{% endfor %}"
    assert ChatTemplate(asks, {}).apply(chat, tools=[bare, told]) == "FalseTrue", "others get what was sent"
    with pytest.raises(ValueError, match="'dict object' has no attribute 'nothing'"):
        ChatTemplate("{{ tools[0].nothing + '' }}", {}).apply(chat, tools=[bare])


def test_the_template_for_tools(byte_level: Path, tmp_path: Path) -> None:
    """As in transformers, it is used when tools are given."""
    from transformers import PreTrainedTokenizerFast

    named = [{"name": "tool_use", "template": HERMES}, {"name": "default", "template": PLAIN}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named} | SPECIAL))
    ours = ChatTemplate.load(tmp_path)
    assert ours is not None
    assert ours.uses_tools
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(byte_level / "tokenizer.json"), chat_template={"tool_use": HERMES, "default": PLAIN}
    )
    for tools in (TOOLS, None):
        want: Any = theirs.apply_chat_template([USER], tools=tools, tokenize=False, add_generation_prompt=True)  # type: ignore[arg-type]
        assert ours.apply([USER], tools=tools) == want
    (tmp_path / "chat_template.jinja").write_text(PLAIN)  # it replaces both
    ours = ChatTemplate.load(tmp_path)
    assert ours is not None
    assert not ours.uses_tools


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        (PLAIN, False),
        ("{# tools #}{{ 'tools' }}{{ messages[0].tools }}", False),
        ("{% set tools = messages %}{{ tools }}", False),
        ("{% if tools is defined and tools %}{{ tools[0] }}{% endif %}", True),
        ("{% macro m() %}{{ tools }}{% endmacro %}{{ m() }}", True),
    ],
)
def test_whether_a_template_knows_tools(source: str, uses: bool) -> None:
    assert ChatTemplate(source, {}).uses_tools == uses


def test_further_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ tone }}{{ add_generation_prompt }}", SPECIAL)
    assert (
        template.apply([USER], kwargs={"tone": "!", "messages": [], "add_generation_prompt": 5}) == "<s>Weather?!True"
    )


# --- the fallback --------------------------------------------------------------------------------------------


def fallback(chat: list[dict[str, Any]], **how: Any) -> str:
    return ChatTemplate(PLAIN, {}).apply(chat, tools=TOOLS, **how)


def test_tools_become_a_system_message() -> None:
    text = fallback([USER])
    begin, rest = text.split("</system>")
    assert rest == "<user>Weather?</user><assistant>"
    assert begin.startswith("<system>You can call functions.")
    listed = begin.split("<tools>")[1].split("</tools>")[0]
    assert json.loads(listed) == TOOLS
    assert "né 🐳" in listed
    assert "The weather <now>." in listed
    form = begin.split("<tool_call>")[1].split("</tool_call>")[0]
    assert [sorted(call) for call in json.loads(form)] == [["arguments", "name"]]
    with_system = fallback([{"role": "system", "content": "Be brief."}, USER])
    assert with_system == text.replace("<system>", "<system>Be brief.\n\n")


def test_calls_and_results_become_text() -> None:
    calls = [call("1", "weather", city="é"), call("2", "time")]
    chat = [
        USER,
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_call_id": "1"},
        {"role": "tool", "content": "noon", "tool_call_id": "2"},
        {"role": "user", "content": "So?"},
        {"role": "assistant", "content": "", "tool_calls": calls[1:]},
        {"role": "tool", "content": "", "tool_call_id": "2"},
    ]
    before = json.dumps(chat)
    first = '{"name": "weather", "arguments": {"city": "é"}}'
    second = '{"name": "time", "arguments": {}}'
    assert fallback(chat).split("</system>")[1] == (
        "<user>Weather?</user>"
        f"<assistant>I look.\n<tool_call>[{first}, {second}]</tool_call></assistant>"
        "<user><tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\nSo?</user>"
        f"<assistant><tool_call>[{second}]</tool_call></assistant>"
        "<user><tool_response>\n\n</tool_response></user><assistant>"
    )
    assert json.dumps(chat) == before


def test_a_final_message_is_continued() -> None:
    chat = [USER, {"role": "assistant", "content": "It is"}]
    text = fallback(chat, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<user>Weather?</user><assistant>It is")


def test_without_tools_calls_of_the_history_are_text_too() -> None:
    assert ChatTemplate(PLAIN, {}).apply([USER, CALLED, RESULT]) == (
        '<user>Weather?</user><assistant><tool_call>[{"name": "weather", "arguments": {"city": "é"}}]</tool_call>'
        '</assistant><user><tool_response>\n{"rain": true}\n</tool_response></user><assistant>'
    )


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "none"])
def test_a_template_of_tools_that_does_not_write_calls_gets_them_as_text(tools: Any) -> None:
    template = ChatTemplate("{{ tools }}" + PLAIN, {})
    assert template.uses_tools
    text = template.apply([USER, CALLED, RESULT], tools=tools)
    assert '<tool_call>[{"name": "weather", "arguments": {"city": "é"}}]</tool_call>' in text
    assert '<user><tool_response>\n{"rain": true}\n</tool_response></user>' in text
    assert "You can call functions" not in text  # the template describes them


REFUSING = (  # as Gemma 2's
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + PLAIN
)


def test_a_template_without_a_system_gets_the_tools_with_the_first_message() -> None:
    text = ChatTemplate(REFUSING, {}).apply([USER, CALLED, RESULT], tools=TOOLS)
    assert text.startswith("<user>You can call functions.")
    assert text.count("You can call functions.") == 1
    assert "answer without a call.\n\nWeather?</user><assistant><tool_call>" in text
    with pytest.raises(ValueError, match="System role not supported"):
        ChatTemplate(REFUSING, {}).apply([{"role": "system", "content": "Be brief."}, USER], tools=TOOLS)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls }}{% endif %}{% endfor %}",
        "{% for m in messages %}{% if not m.content %}{{ m.tool_calls }}{% endif %}{% endfor %}",
        "{% for m in messages if m.tool_calls %}{{ m.tool_calls[0].function.parameters + '' }}{% endfor %}",
    ],
    ids=["without a content", "with an empty content", "fails"],
)
def test_calls_that_a_template_does_not_write_are_text(source: str) -> None:
    """Though it names `tool_calls`."""
    text = ChatTemplate(source + PLAIN, {}).apply([USER, {**CALLED, "content": "I look."}, RESULT])
    assert 'I look.\n<tool_call>[{"name": "weather", "arguments": {"city": "é"}}]</tool_call>' in text


WRITING = (  # as DeepSeek's: it writes calls, with arguments as text, but no tools
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}"
    "{{ '<call>' + c.function.name + '<sep>' + c.function.arguments }}{% endfor %}{% endfor %}"
)


def test_a_template_that_writes_calls_but_no_tools() -> None:
    template = ChatTemplate(WRITING, {})
    assert (template.uses_tools, template.writes_calls) == (False, True)
    assert "<tool_call>[" in template.apply([USER, CALLED, RESULT], tools=TOOLS), "unless its form is known"
    template.call_form = "<call>NAME<sep>{}"
    text = template.apply([USER, CALLED, RESULT], tools=TOOLS)
    assert text.startswith("<system>You can call functions.")
    assert "in this form:\n<call>NAME<sep>{}\nThe results of the calls will follow. If" in text
    assert "weather" in text
    assert text.endswith('<user>Weather?<assistant><call>weather<sep>{"city": "é"}<tool>{"rain": true}')
    assert template.apply([USER, CALLED, RESULT]) in text


def test_the_default_model_gets_the_fallback(default_model: Path) -> None:
    text = Tokenizer.load(default_model).apply_chat_template([USER, CALLED, RESULT], tools=TOOLS)
    assert text.count("<|im_start|>system") == 1
    assert text.endswith(
        '<|im_start|>user\n<tool_response>\n{"rain": true}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    )
