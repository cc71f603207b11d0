"""Custom tools of OpenAI's APIs: their input is a text, whole, streamed, resumed and stored, in any format of calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import openai_document
import pytest
from echo_engine import WRITE
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseCustomToolCall, ResponseCustomToolCallInputDeltaEvent
from recorded_calls import CALLS
from stack import NAME, Stack
from test_tool_requests import TEMPLATE as HERMES
from test_tool_requests import accepts, folder_of, grammar_of, hermes, validator_of

from gateway.answer.parsers.call_object import CustomInput
from gateway.answer.parsers.registry import make_parser
from gateway.errors import ApiError
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.responses import ResponseRequest
from services.grammar import Grammars
from services.models import ModelInfo
from services.settings.settings import Settings
from services.text import Tokenizer

# leaves room for answers; calls of the history are in the prompt
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    "<eos>{% endfor %}{% if tools %}{% endif %}"
)
TEXT = 'né "x" \\ 🐳\n'
CALL = hermes(json.dumps({"name": "patch", "arguments": {"input": TEXT}}))
CHAT: dict[str, Any] = {"type": "custom", "custom": {"name": "patch", "description": "a"}}
RESPONSE: dict[str, Any] = {"type": "custom", "name": "patch", "description": "a"}
SAY = [{"role": "user", "content": WRITE + "I do." + CALL}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("custom"), TEMPLATE)


@pytest.fixture(scope="module")
def stack(redis_url: str, folder: Path) -> Iterator[Stack]:
    with Stack(redis_url, "custom", folder, Settings(tool_call_parser="hermes", reasoning_parser="none")) as stack:
        yield stack


@given(text=st.text(), raw=st.booleans(), cuts=st.lists(st.integers(0, 400), max_size=5))
def test_the_input_does_not_depend_on_the_cuts(text: str, raw: bool, cuts: list[int]) -> None:
    written = json.dumps({"input": text}, ensure_ascii=raw)
    places = [0, *sorted(cut % (len(written) + 1) for cut in cuts), len(written)]
    reader = CustomInput()
    assert "".join(reader.read(written[a:b]) for a, b in pairwise(places)) == text


@pytest.mark.parametrize("written", ["", "{}", "[1]", '{"input": 7}', '{"patch": "a"}', '{"input": "a', "text"])
def test_other_arguments_are_no_error(written: str) -> None:
    assert CustomInput().read(written) in ("", "7", "a")


@pytest.mark.parametrize("name", CALLS)
def test_every_format_of_calls(name: str) -> None:
    parser = make_parser(name, "", False, True)
    assert parser
    text = CALLS[name].text.replace("city", "input")
    parts = [part for c in text for part in parser.push(c)] + parser.finish()
    reader = CustomInput()
    assert "".join(reader.read(part.text) for part in parts if part.call == 0) == 'né "x" </b>'


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"messages": SAY, "model": NAME, "tools": [CHAT]}
    (choice,) = client.chat.completions.create(**asked).choices
    (call,) = choice.message.tool_calls or ()
    assert (choice.message.content, choice.finish_reason, call.type) == ("I do.", "tool_calls", "custom")
    assert (call.custom.name, call.custom.input) == ("patch", TEXT)
    deltas = [
        dict(call)
        for chunk in client.chat.completions.create(**asked, stream=True)
        for call in chunk.choices[0].delta.tool_calls or ()
    ]
    assert (deltas[0]["type"], deltas[0]["custom"]["name"]) == ("custom", "patch")
    assert "".join(delta["custom"]["input"] for delta in deltas) == TEXT


def test_responses_whole_streamed_and_stored(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"input": SAY, "model": NAME, "tools": [RESPONSE]}
    made = client.responses.create(**asked)
    call = made.output[-1]
    assert isinstance(call, ResponseCustomToolCall)
    assert (call.name, call.input) == ("patch", TEXT)
    assert made.tools[0].to_dict() == RESPONSE | {"format": {"type": "text"}}
    openai_document.check("CustomToolCall", call.to_dict())
    with client.responses.stream(**asked) as stream:
        heard = list(stream)
        streamed = stream.get_final_response()
    said = [event.delta for event in heard if isinstance(event, ResponseCustomToolCallInputDeltaEvent)]
    assert "".join(said) == TEXT
    assert isinstance(streamed.output[-1], ResponseCustomToolCall)
    assert streamed.output[-1].input == TEXT
    kinds = [event.type for event in heard]
    assert "response.custom_tool_call_input.done" in kinds
    for event in heard:
        if event.type == "response.custom_tool_call_input.done":
            openai_document.check("ResponseCustomToolCallInputDoneEvent", event.to_dict())
    assert client.responses.retrieve(made.id).output[-1] == call


def test_histories(client: openai.OpenAI, stack: Stack) -> None:
    def prompt() -> str:
        new = stack.engine.asked[-1]
        return stack.tokenizer.decode(new.token_ids[: new.num_prompt_tokens], skip_special_tokens=False)

    first = client.responses.create(input=SAY, model=NAME, tools=[RESPONSE])  # type: ignore[list-item, arg-type]
    call = first.output[-1]
    assert isinstance(call, ResponseCustomToolCall)
    output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done" + WRITE + "b"}
    second = client.responses.create(input=[output], previous_response_id=first.id, model=NAME, tools=[RESPONSE])  # type: ignore[list-item]
    expected = prompt()
    assert json.dumps({"input": TEXT}, ensure_ascii=False) in expected
    dumped: Any = [*SAY, *(item.to_dict() for item in first.output), output]
    client.responses.create(input=dumped, model=NAME, tools=[RESPONSE])  # type: ignore[list-item]
    assert prompt() == expected
    items = [item.to_dict() for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item["type"] for item in items] == ["message", "message", "custom_tool_call", "custom_tool_call_output"]
    assert items[2]["input"] == TEXT
    answer = client.chat.completions.create(messages=SAY, model=NAME, tools=[CHAT]).choices[0].message  # type: ignore[arg-type, list-item]
    assert answer.tool_calls
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": output["output"]}
    client.chat.completions.create(messages=[*SAY, answer.to_dict(), result], model=NAME, tools=[CHAT])  # type: ignore[list-item]
    assert prompt() == expected


def test_grammars(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, HERMES)
    validator, info = validator_of(folder), ModelInfo.load(folder)
    grammars = Grammars(Tokenizer.load(folder).tables, info.vocab_size, info.eos_token_ids)
    digits = CHAT["custom"] | {"format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+|a"}}}
    named: Any = {"type": "custom", "custom": {"name": "patch"}}
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for tool, choice, texts in (
        (CHAT, "required", (TEXT, "")),
        (CHAT, named, (TEXT,)),
        (CHAT, allowed, (TEXT,)),
        (CHAT, "auto", (TEXT,)),
        (CHAT | {"custom": digits}, "required", ("12", "a")),
    ):
        grammar = grammar_of(validator, tools=[tool], tool_choice=choice)
        for text in texts:
            arguments = json.dumps({"input": text}, ensure_ascii=False)
            assert accepts(grammars, grammar, hermes(f'{{"name": "patch", "arguments": {arguments}}}'), folder), text
        for wrong in ('{"input": 1}', '{"other": "a"}', '{"input": "a", "other": "b"}', "{}", '"a"'):
            assert not accepts(grammars, grammar, hermes(f'{{"name": "patch", "arguments": {wrong}}}'), folder), wrong
    for wrong in ("", "1a", "aa", "\\u0061"):
        call = f'{{"name": "patch", "arguments": {{"input": "{wrong}"}}}}'
        assert not accepts(grammars, grammar, hermes(call), folder), wrong


def call(parser: str, text: str) -> str:
    """A call of `patch` as models of this parser write it."""
    arguments = json.dumps({"input": text})
    if parser == "hermes":
        return hermes(f'{{"name": "patch", "arguments": {arguments}}}')
    if parser == "qwen3_coder":
        return hermes(f"<function=patch>\n<parameter=input>\n{text}\n</parameter>\n</function>")
    if parser == "lfm2":
        return f"<|tool_call_start|>[patch(input={json.dumps(text)})]<|tool_call_end|>"
    if parser == "gemma4":
        return f'<|tool_call>call:patch{{input:<|"|>{text}<|"|>}}<tool_call|>'
    head = "<|tool_calls_section_begin|><|tool_call_begin|>functions.patch:0<|tool_call_argument_begin|>"
    return f"{head}{arguments}<|tool_call_end|><|tool_calls_section_end|>"


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "kimi_k2", "lfm2", "gemma4"])
def test_a_regular_expression_is_followed_in_each_kind_of_format(tmp_path: Path, parser: str) -> None:
    folder = folder_of(tmp_path, HERMES)
    validator, info = validator_of(folder, parser), ModelInfo.load(folder)
    grammars = Grammars(Tokenizer.load(folder).tables, info.vocab_size, info.eos_token_ids)
    texts = ("a", "b", "ab", "xa", "1/2", "a\nb", "")
    for pattern, followed in (
        ("a|b", ["a", "b"]),
        ("^a$", ["a"]),
        ("^(a|b)$", ["a", "b"]),
        ("[0-9]/[0-9]", ["1/2"]),
        ("a[^x]b", ["a\nb"]),
        (None, list(texts)),
    ):
        form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": pattern}} if pattern else None
        tool = CHAT | {"custom": CHAT["custom"] | {"format": form}}
        grammar = grammar_of(validator, tools=[tool], tool_choice="required")
        assert [text for text in texts if accepts(grammars, grammar, call(parser, text), folder)] == followed, pattern


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "kimi_k2", "lfm2", "gemma4"])
@pytest.mark.parametrize("pattern", ["a)(b", "a)|(b", "(a))(b(c)", "(a", "[a", "a\\"])
def test_a_part_of_a_regular_expression_is_none(tmp_path: Path, parser: str, pattern: str) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": pattern}}
    tool = CHAT | {"custom": CHAT["custom"] | {"format": form}}
    with pytest.raises(ApiError, match="Invalid 'tools'"):
        grammar_of(validator_of(folder_of(tmp_path, HERMES), parser), tools=[tool])


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        (ChatRequest, {"messages": SAY, "tools": [CHAT]}),
        (ResponseRequest, {"input": "a", "tools": [RESPONSE]}),
    ],
)
def test_what_is_refused(schema: Any, fields: dict[str, Any]) -> None:
    lark = {"syntax": "lark", "definition": 'start: "a"'}
    chat = schema is ChatRequest
    form = {"type": "grammar"} | ({"grammar": lark} if chat else lark)
    tool = {"type": "custom"} | ({"custom": CHAT["custom"] | {"format": form}} if chat else RESPONSE | {"format": form})
    with pytest.raises(ApiError, match="is 'lark'; models write the input as a string of JSON") as error:
        validate(schema, fields | {"tools": [tool]})
    assert str(error.value.param).endswith("format.grammar.syntax" if chat else "format.syntax")
    other = {"type": "custom", "custom": {"name": "x"}} if chat else {"type": "custom", "name": "x"}
    with pytest.raises(ApiError, match="'x', which is not one of the tools"):
        validate(schema, fields | {"tool_choice": other})
