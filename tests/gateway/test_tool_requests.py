"""Requests with tools: their prompts are the same in all APIs, and the plan and the grammar follow from the choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stack import NAME, Stack
from tiny_text import make_folder

from gateway.answer.plan import AnswerKind
from gateway.answer.reading import Reading
from gateway.errors import ApiError
from gateway.executor import FairExecutor
from gateway.grammars.check import GrammarCheck
from gateway.http.body import validate
from gateway.http.headers import Caller
from gateway.model import ServedModel
from gateway.schemas.chat import ChatRequest
from gateway.tools import NO_PARAMETERS
from gateway.validation import ValidatedRequest, Validator
from services.errors import GrammarError
from services.grammar import Grammars
from services.messages import EngineFigures
from services.models import ModelInfo
from services.settings.settings import Settings
from services.text import Tokenizer

# in the style of Qwen's
TEMPLATE = (
    "{% if tools %}<system>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<eos>{% endif %}"
    "{% for m in messages %}<{{ m.role if m.role != 'tool' else 'user' }}>{{ m.content }}"
    "{% for c in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<eos>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}"
LONG = "{{ messages[0].content }}"  # tools are not in it, so they become text
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"name": "weather", "description": "né", "parameters": SCHEMA}
WRONG: dict[str, Any] = {"name": "odd", "parameters": {"type": "object", "properties": {"a": {"pattern": "(?<=x)y"}}}}
SAY = [{"role": "user", "content": "hello"}]
RIGHT, OTHER = '{"name": "weather", "arguments": {"city": "Rome"}}', '{"name": "weather", "arguments": {"town": 1}}'
FIGURES = EngineFigures(NAME, 4096, 512, 16, 300, "echo")


def folder_of(folder: Path, template: str) -> Path:
    made = make_folder(folder)
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("knowing"), TEMPLATE)


def validator_of(folder: Path, parser: Any = "auto") -> Validator:
    async def figures() -> EngineFigures:
        return FIGURES

    model = ServedModel(NAME, Tokenizer.load(folder), ModelInfo.load(folder), 1)
    return Validator("gateway", model, Settings(tool_call_parser=parser), FairExecutor(), figures)


@pytest.fixture(scope="module")
def validator(folder: Path) -> Validator:
    return validator_of(folder)


def tool(function: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": function | fields}


def validated(validator: Validator, **fields: Any) -> ValidatedRequest:
    body = {"messages": SAY, "max_tokens": 50} | fields
    request = validate(ChatRequest, body)
    return validator.request(AnswerKind.CHAT, request, [[1, 2, 3]], "messages", FIGURES, Caller("tenant"))


def grammar_of(validator: Validator, **fields: Any) -> str:
    grammars = {s.sampling.grammar for s in validated(validator, **fields).submission.sequences}
    assert len(grammars) == 1
    return grammars.pop()


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    info = ModelInfo.load(folder)
    return Grammars(Tokenizer.load(folder).tables, info.vocab_size, info.eos_token_ids)


def accepts(grammars: Grammars, grammar: str, text: str, folder: Path) -> bool:
    matcher = grammars.matcher(grammar)
    try:
        matcher.consume(Tokenizer.load(folder).encode(text, add_special_tokens=False))
    except GrammarError:
        return False
    return matcher.complete


def hermes(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def test_what_a_choice_means(validator: Validator, grammars: Grammars, folder: Path) -> None:
    tools = [tool(WEATHER)]
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"tools": tools, "tool_choice": "required"}, (hermes(RIGHT),)),
        ({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "weather"}}}, (hermes(RIGHT),)),
        ({"tools": [tool(WEATHER, strict=True)]}, ("hi", '{"a": 1}', hermes(RIGHT))),
        ({"tools": tools, "response_format": {"type": "json_object"}}, ('{"a": 1}', hermes(RIGHT), hermes(OTHER))),
        ({"tools": tools, "tool_choice": "none", "response_format": {"type": "json_object"}}, ('{"a": 1}',)),
        ({"response_format": {"type": "json_object"}, "tool_choice": "auto"}, ('{"a": 1}',)),
    ]
    for fields, allowed in cases:
        grammar = grammar_of(validator, **fields)
        texts = ("hi", '{"a": 1}', hermes(RIGHT), hermes(OTHER))
        assert tuple(text for text in texts if accepts(grammars, grammar, text, folder)) == allowed, fields
    for free in ({"tools": tools}, {"tools": tools, "tool_choice": "none"}, {"tools": []}):
        assert grammar_of(validator, **free) == ""


@pytest.mark.parametrize("strict", [True, False])
def test_calls_after_free_reasoning(folder: Path, grammars: Grammars, strict: bool) -> None:
    tokenizer, info = Tokenizer.load(folder), ModelInfo.load(folder)
    check = GrammarCheck(ServedModel(NAME, tokenizer, info, 1))
    choice = "auto" if strict else "required"
    body = {"messages": SAY, "tools": [tool(WEATHER, strict=strict)], "tool_choice": choice}
    request = validate(ChatRequest, body)
    opened = check.grammar_of(request, Reading("hermes", "qwen3", reasoning_open=True))
    closed = check.grammar_of(request, Reading("hermes", "qwen3"))
    call, wrong = hermes(RIGHT), hermes(OTHER)
    for text in (f"a {{<tool_ca\n</think>\n\n{call}", f"</think>{call}"):
        assert accepts(grammars, opened, text, folder), text
        assert accepts(grammars, closed, f"<think>{text}", folder), text
    assert accepts(grammars, closed, call, folder)
    assert not accepts(grammars, opened, f"a</think>\n\n{wrong}", folder)
    assert not accepts(grammars, closed, f"<think>a</think>{wrong}", folder)
    assert accepts(grammars, opened, "a</think>It rains.", folder) == strict
    assert not accepts(grammars, opened, "a", folder)  # the reasoning has not ended


def test_marks_that_are_special_tokens_are_text(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]"))
    raw = json.loads((folder / "tokenizer.json").read_text())
    token = max(t["id"] for t in raw["added_tokens"]) + 1
    raw["added_tokens"].append(raw["added_tokens"][-1] | {"id": token, "content": "[TOOL_CALLS]"})
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    request = validated(validator_of(folder), tools=[tool(WEATHER)])
    assert request.plan.tool_parser == "mistral"
    assert not request.plan.skip_special_tokens
    assert not request.submission.sequences[0].sampling.skip_special_tokens
    assert validated(validator_of(folder)).plan.skip_special_tokens


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "odd"}}}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "none"}, False),
    ],
)
def test_a_schema_that_cannot_be_enforced(validator: Validator, fields: dict[str, Any], refused: bool) -> None:
    body = fields | {"tools": [tool(WEATHER, strict=True), tool(WRONG)]}
    if not refused:
        validated(validator, **body)
        return
    with pytest.raises(ApiError, match="'odd'") as error:
        validated(validator, **body)
    assert error.value.param == "tools"


def test_a_strict_schema_that_cannot_be_enforced(validator: Validator) -> None:
    with pytest.raises(ApiError, match="'odd'"):
        validated(validator, tools=[tool(WRONG, strict=True)])


def test_where_the_output_ends(validator: Validator) -> None:
    for fields in ({"ignore_eos": True}, {"min_tokens": 3}):
        with pytest.raises(ApiError, match=next(iter(fields))):
            validated(validator, tools=[tool(WEATHER)], tool_choice="required", **fields)
        validated(validator, tools=[tool(WEATHER)], **fields)


def test_templates_of_no_known_family(tmp_path: Path) -> None:
    validator = validator_of(folder_of(tmp_path / "a", "{{ tools }}{{ messages[0].content }}"))
    with pytest.raises(ApiError, match="does not know how this model writes calls") as error:
        validated(validator, tools=[tool(WEATHER)])
    assert error.value.param == "tools"
    validated(validator, tools=[tool(WEATHER)], tool_choice="none")
    unaware = validator_of(folder_of(tmp_path / "b", LONG))
    assert validated(unaware, tools=[tool(WEATHER)]).plan.tool_parser == "smollm2"


# --- prompts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [TEMPLATE, "{{ tools }}" + PLAIN, PLAIN], ids=["calls", "tools", "plain"])
def test_calls_and_results_are_in_every_prompt(redis_url: str, tmp_path: Path, template: str) -> None:
    """In every API and form, with tools and without, whatever the template knows."""
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    block = {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Rome"}}
    turns = [
        [{"role": "assistant", "tool_calls": [{"function": function}]}, {"role": "tool", "content": "rain"}],
        [{"role": "assistant", "function_call": function}, {"role": "function", "content": "rain"}],
    ]
    items = [
        {"type": "function_call", "call_id": "c", **function},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]
    blocks = [
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "rain"}]},
    ]
    with Stack(redis_url, "histories", folder_of(tmp_path, template), Settings(), engine=False) as stack:
        client = stack.http
        for tools in ([], [{"name": "weather"}]):
            of_chat = [tool(each) for each in tools]
            asked = [{"messages": [*SAY, *turn], "tools": of_chat} for turn in turns]
            tokens, older = (client.post("/tokenize", json=body).json()["tokens"] for body in asked)
            response = {"input": [*SAY, *items], "tools": [{"type": "function", **each} for each in tools]}
            inputs = client.post("/v1/responses/input_tokens", json=response).json()["input_tokens"]
            message = {"messages": [*SAY, *blocks], "tools": [each | {"input_schema": NO_PARAMETERS} for each in tools]}
            counted = client.post("/v1/messages/count_tokens", json=message).json()["input_tokens"]
            assert (older, inputs, counted) == (tokens, len(tokens), len(tokens))
            prompt = client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
            assert '"name": "weather", "arguments": {"city": "Rome"}' in prompt
            assert "rain" in prompt
