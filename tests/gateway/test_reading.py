"""Which parsers read an answer: by the chat template, the settings, the request, and the end of the prompt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
from stack import NAME
from tiny_text import make_folder
from tokenizers import AddedToken, decoders, models, normalizers

from gateway.answer.parsers.registry import REASONING_PARSERS, TOOL_PARSERS
from gateway.answer.plan import Plan
from gateway.answer.reading import ModelReading, fixed_tokens
from gateway.errors import ApiError
from gateway.executor import FairExecutor
from gateway.http.body import validate
from gateway.http.headers import Caller
from gateway.model import ServedModel
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.messages import CountTokensRequest, MessageRequest
from gateway.schemas.responses import ResponseRequest
from gateway.validation import ValidatedRequest, Validator
from services.errors import ModelError
from services.messages import EngineFigures
from services.models import ModelInfo
from services.requests import FEATURES, ThinkingBudget
from services.settings.settings import Settings
from services.text import Tokenizer

FIGURES = EngineFigures(NAME, 512, 512, 16, 300, "echo", features=FEATURES)
# in the style of Qwen3's: an answer without thinking begins after an empty one
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{{ start }}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% if reasoning_effort == 'high' %}<think>\n{% endif %}{% endif %}"
)
CALLS = "{% for c in messages[0].tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{{ tools }}"
SAID = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "the"}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("reading"))


def validator(folder: Path, template: str = TEMPLATE, figures: EngineFigures = FIGURES, **settings: Any) -> Validator:
    async def known() -> EngineFigures:
        return figures

    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    model = ServedModel(NAME, Tokenizer.load(folder), ModelInfo.load(folder), 1)
    return Validator("gateway", model, Settings(**settings), FairExecutor(), known)


async def asked(checker: Validator, content: str = "hello", **fields: Any) -> ValidatedRequest:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 5} | fields
    return await checker.chat(validate(ChatRequest, body), Caller("tenant"))


async def plan(checker: Validator, content: str = "hello", **fields: Any) -> Plan:
    return (await asked(checker, content, **fields)).plan


def test_the_settings_name_the_parsers() -> None:
    names = {name: set(get_args(Settings.model_fields[name].annotation)) for name in Settings.model_fields}
    assert names["tool_call_parser"] == {"auto", "none", *TOOL_PARSERS}
    assert names["reasoning_parser"] == {"auto", "none", *REASONING_PARSERS}


# in the style of DeepSeek V3.1's own, which has no place for tools, and takes arguments as text
WRITING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ '<｜tool▁calls▁begin｜>"
    "<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>' }}{% endfor %}{% endfor %}"
)


async def test_a_template_that_writes_calls_but_no_tools_has_its_own_format(folder: Path) -> None:
    checker = validator(folder, WRITING, replace(FIGURES, max_model_len=2048))
    called = {"id": "a", "type": "function", "function": {"name": "the", "arguments": '{"a": "é"}'}}
    history = [*SAID, {"role": "assistant", "tool_calls": [called]}]
    made = await asked(checker, messages=history, tools=TOOLS, tool_choice="required", max_tokens=100)
    assert made.plan.tool_parser == "deepseek_v31"
    (sequence,) = made.submission.sequences
    assert "uff5ctool" in sequence.sampling.grammar  # within JSON within JSON
    tokenizer = Tokenizer.load(folder)
    text = tokenizer.decode(sequence.prompt, skip_special_tokens=False)
    begin, written, rest = text.partition('<｜tool▁sep｜>{"a": "é"}')
    assert written
    assert rest == "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    assert '<｜tool▁call▁begin｜>the name of a function<｜tool▁sep｜>{"the name of an argument"' in begin
    ModelReading(tokenizer, Settings(tool_call_parser="smollm2"))
    assert "<tool_call>[{" in tokenizer.apply_chat_template(SAID, tools=TOOLS)


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({}, ("deepseek_r1", False)),
        ({"content": "What is <think>?"}, ("deepseek_r1", False)),
        ({"reasoning_effort": "low"}, ("deepseek_r1", False)),
        ({"reasoning_effort": "high"}, ("deepseek_r1", True)),
        ({"reasoning_effort": "none"}, ("", False)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ("", False)),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, ("deepseek_r1", False)),
        ({"chat_template_kwargs": {"start": "<think>a</think>b<think>"}}, ("deepseek_r1", True)),
        (
            {
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>Hm"}],
                "continue_final_message": True,
            },
            ("deepseek_r1", True),
        ),
    ],
)
async def test_reasoning_follows_from_the_prompt(folder: Path, fields: dict[str, Any], read: tuple[str, bool]) -> None:
    made = await plan(validator(folder), **fields)
    assert (made.reasoning_parser, made.reasoning_open) == read


async def test_a_completion_is_not_parsed(folder: Path) -> None:
    fields = validate(CompletionRequest, {"prompt": "<think>", "max_tokens": 5})
    made = (await validator(folder).completion(fields, Caller("tenant"))).plan
    assert (made.tool_parser, made.reasoning_parser) == ("", "")


async def test_settings_choose_the_parsers(folder: Path) -> None:
    assert (await plan(validator(folder, reasoning_parser="none"))).reasoning_parser == ""
    plain = validator(folder, "{{ messages[0].content }}", reasoning_parser="qwen3", tool_call_parser="hermes")
    made = await plan(plain, tools=TOOLS)
    assert (made.reasoning_parser, made.tool_parser) == ("qwen3", "hermes")
    with pytest.raises(ModelError, match="tool_call_parser=mistral: the model's chat template does not know tools"):
        validator(folder, "{{ messages[0].content }}", tool_call_parser="mistral")
    with pytest.raises(ApiError, match="how this model writes calls"):
        await plan(validator(folder, tool_call_parser="none"), tools=TOOLS)


async def test_tools_are_read_only_where_they_may_be_called(folder: Path) -> None:
    checker = validator(folder, TEMPLATE + CALLS)
    for fields, parser in (
        ({"tools": TOOLS}, "hermes"),
        ({"tools": TOOLS, "tool_choice": "none"}, ""),
        ({}, ""),
    ):
        assert (await plan(checker, **fields)).tool_parser == parser
    assert not (await plan(checker, tools=TOOLS, parallel_tool_calls=False)).parallel_tool_calls


async def test_marks_that_are_special_tokens_are_spelled(folder: Path, tmp_path: Path) -> None:
    special = make_folder(tmp_path / "special")
    tokenizer = json.loads((special / "tokenizer.json").read_text())
    eos = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [eos | {"id": 274, "content": "</think>"}]
    (special / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((special / "config.json").read_text())
    (special / "config.json").write_text(json.dumps(config | {"vocab_size": 275}))
    for place, skip in ((special, False), (folder, True)):
        made = await asked(validator(place))
        assert made.plan.skip_special_tokens is skip
        assert made.submission.sequences[0].sampling.skip_special_tokens is skip
    assert (await plan(validator(special), reasoning_effort="none")).skip_special_tokens


async def test_an_answer_in_a_format_may_begin_with_reasoning(folder: Path) -> None:
    format = {"response_format": {"type": "json_object"}}
    grammars = [
        (await asked(validator(folder), **format, **fields)).submission.sequences[0].sampling.grammar
        for fields in ({}, {"reasoning_effort": "high"}, {"reasoning_effort": "none"})
    ]
    assert ["think" in grammar for grammar in grammars] == [True, True, False]
    assert ["<think>" in grammar for grammar in grammars] == [True, False, False]


@pytest.mark.parametrize(
    ("asked", "variables", "field", "shown"),
    [
        ({}, {}, None, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {"enable_thinking": True}, "thinking", True),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}, None, True),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {}, None, False),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {"enable_thinking": True, "reasoning_effort": "max"},
            "output_config",
            True,
        ),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
            {"enable_thinking": False, "reasoning_effort": "low"},
            "output_config",
            True,
        ),
        (
            {"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
            "thinking",
            True,
        ),
    ],
)
def test_thinking_of_a_message(asked: Any, variables: Any, field: str | None, shown: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5} | asked
    fields = validate(MessageRequest, body)
    assert (fields.template_variables, fields.reasoning_field, fields.shows_reasoning) == (variables, field, shown)
    counted = validate(CountTokensRequest, {name: value for name, value in body.items() if name != "max_tokens"})
    assert counted.template_variables == variables


def test_the_template_receives_the_verbosity() -> None:
    """In chat and responses, as other variables; what the template does not use has no effect."""
    said = [{"role": "user", "content": "hi"}]
    for word in ("low", "medium", "high"):
        chat = validate(ChatRequest, {"messages": said, "verbosity": word})
        response = validate(ResponseRequest, {"input": "hi", "text": {"verbosity": word}})
        assert chat.template_variables == response.template_variables == {"verbosity": word}
        assert response.echo()["text"] == {"format": {"type": "text"}, "verbosity": word}
        own = validate(ChatRequest, {"messages": said, "verbosity": word, "chat_template_kwargs": {"verbosity": 5}})
        assert own.template_variables == {"verbosity": 5}
    assert validate(ChatRequest, {"messages": said, "verbosity": None}).template_variables == {}
    assert "verbosity" not in validate(ResponseRequest, {"input": "hi", "text": {}}).echo()["text"]


@pytest.mark.parametrize("effort", [None, "low", "medium", "high"])
async def test_the_template_of_gpt_oss_receives_the_effort(folder: Path, effort: str | None) -> None:
    checker = validator(
        folder,
        "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
        "{% for m in messages %}{{ m.content }}{% endfor %}{# <|channel|>analysis functions. #}<|start|>assistant",
    )
    said = [{"role": "user", "content": "hi"}]
    bodies: list[tuple[Any, dict[str, Any]]] = [
        (ChatRequest, {"messages": said, "reasoning_effort": effort}),
        (ResponseRequest, {"input": "hi", "reasoning": {"effort": effort}}),
        (MessageRequest, {"messages": said, "max_tokens": 5, "output_config": {"effort": effort}}),
    ]
    for model, body in bodies:
        kwargs = validate(model, body).template_variables
        made = await asked(checker, chat_template_kwargs=kwargs)
        prompt = Tokenizer.load(folder).decode(made.submission.sequences[0].prompt)
        assert f"Reasoning: {effort or 'medium'}<" in prompt
        assert made.plan.reasoning_parser == "openai_gptoss"


async def test_without_reasoning(folder: Path) -> None:
    assert not (await plan(validator(folder), include_reasoning=False)).include_reasoning
    with pytest.raises(ApiError, match="this model does not reason") as refused:
        await plan(validator(folder, "{{ messages[0].content }}"), reasoning_effort="low")
    assert refused.value.param == "reasoning_effort"


XML = "{% for c in messages[0].tool_calls %}<tool_call>\n<function={{ c.function.name }}>\n<parameter=x>{% endfor %}"
XML += "{{ tools }}"
TYPED = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}
TYPED_TOOLS = [{"type": "function", "function": {"name": "the", "parameters": TYPED}}]


async def test_the_plan_has_the_types_of_parameters_between_tags(folder: Path) -> None:
    made = await asked(validator(folder, TEMPLATE + XML), tools=TYPED_TOOLS, tool_choice="required")
    assert (made.plan.tool_parser, made.plan.types) == ("qwen3_coder", {"the": {"x": "integer"}})
    assert Plan.unpack(made.submission.body).types == made.plan.types
    assert "<function=" in made.submission.sequences[0].sampling.grammar
    assert (await plan(validator(folder, TEMPLATE + CALLS), tools=TYPED_TOOLS)).types == {}


async def test_one_name_reads_both_forms_of_mistral(folder: Path) -> None:
    newer = "{% for c in messages[0].tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{% endfor %}{{ tools }}"
    for template, parser in ((newer, "mistral_v11"), (newer.replace("[ARGS]", ""), "mistral")):
        for setting in ("auto", "mistral"):
            made = await plan(validator(folder, TEMPLATE + template, tool_call_parser=setting), tools=TOOLS)
            assert made.tool_parser == parser


async def test_channels_are_read_with_and_without_tools(folder: Path) -> None:
    template = "{{ tools }}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    template += "{{ messages[0].tool_calls }}{# functions. #}<|start|>assistant{% if x %}<|channel|>analysis{% endif %}"
    checker = validator(folder, template)
    made = await plan(checker)
    assert (made.tool_parser, made.reasoning_parser, made.reasoning_open) == ("", "openai_gptoss", False)
    forced = await asked(checker, tools=TOOLS, tool_choice="required")
    assert forced.plan.tool_parser == "openai"
    assert "to=functions.the" in forced.submission.sequences[0].sampling.grammar
    formatted = await asked(checker, response_format={"type": "json_object"})
    assert "<|channel|>final" in formatted.submission.sequences[0].sampling.grammar


THINKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>{{ start }}{% endif %}"
)


def budget_of(made: ValidatedRequest) -> ThinkingBudget | None:
    return made.submission.sequences[0].sampling.thinking_token_budget


@pytest.mark.parametrize(
    ("template", "start", "closing", "opened", "left"),
    [
        (THINKS, "", "\n</think>\n\n", False, 9),
        (THINKS, "<think>", "\n</think>\n\n", True, 9),
        (THINKS, "<think>\nthe", "\n</think>\n\n", True, 7),  # as in vLLM, what the prompt has of the block counts
        (THINKS, "<think>" + 12 * "a", "\n</think>\n\n", True, 0),
        (TEMPLATE, "", "</think>", False, 9),  # the template writes no reasoning
        (TEMPLATE.replace("think>", "seed:think>"), "", "</seed:think>", False, 9),
        (TEMPLATE + "{# [THINK] [/THINK] #}", "[THINK]a", "[/THINK]", True, 8),
        (TEMPLATE + "{# <|channel|>analysis<|message|> #}", "", "<|end|><|start|>assistant", False, 9),
    ],
)
async def test_a_thinking_budget_ends_the_reasoning_as_the_template_does(
    folder: Path, template: str, start: str, closing: str, opened: bool, left: int
) -> None:
    checker = validator(folder, template)
    kwargs = {"chat_template_kwargs": {"start": start}}
    budget = budget_of(await asked(checker, max_tokens=50, thinking_token_budget=9, **kwargs))
    assert budget
    assert Tokenizer.load(folder).decode(budget.closing) == closing
    assert (budget.tokens, budget.opened, bool(budget.again)) == (left, opened, "channel" in template)
    assert closing.strip().startswith(budget.end)


async def test_a_budget_that_ends_nothing_is_none(folder: Path) -> None:
    """An engine of a build that knows no budgets can run such a request."""
    checker = validator(folder)
    assert budget_of(await asked(checker, max_tokens=50, thinking_token_budget=0))
    for fields in (
        {"max_tokens": 9, "thinking_token_budget": 9},
        {"max_tokens": 50, "thinking_token_budget": -1},
        {"max_tokens": 50, "thinking_token_budget": None},
        {"max_tokens": 50, "thinking_token_budget": 9, "reasoning_effort": "none"},
    ):
        assert budget_of(await asked(checker, **fields)) is None, fields


async def test_budgets_of_all_apis(folder: Path) -> None:
    checker = validator(folder)
    completion = {"prompt": ["<think>hello", "hello", "<think></think>"], "max_tokens": 50, "thinking_token_budget": 5}
    made = await checker.completion(validate(CompletionRequest, completion), Caller("tenant"))
    budgets = [sequence.sampling.thinking_token_budget for sequence in made.submission.sequences]
    assert [budget and (budget.tokens, budget.opened) for budget in budgets] == [(4, True), (5, False), None]
    for kind, body, param, tokens in (
        (MessageRequest, {"thinking": {"type": "enabled", "budget_tokens": 7}}, "thinking", 7),
        (MessageRequest, {"thinking": {"type": "adaptive"}}, "thinking", None),
        (MessageRequest, {"thinking": {"type": "disabled", "budget_tokens": 7}}, "thinking", None),
        (MessageRequest, {"thinking_token_budget": 0}, "thinking_token_budget", 0),
        (ResponseRequest, {"thinking_token_budget": 7}, "thinking_token_budget", 7),
    ):
        given = {"input": "a"} if kind is ResponseRequest else {"messages": [{"role": "user", "content": "a"}]}
        fields = validate(kind, given | ({} if kind is ResponseRequest else {"max_tokens": 50}) | body)
        assert (fields.thinking_budget, fields.budget_field) == (tokens, param), body


@pytest.mark.parametrize("budget", [-2, 1.5, True, "5"])
async def test_a_budget_is_a_number_of_tokens(folder: Path, budget: Any) -> None:
    with pytest.raises(ApiError) as caught:
        await asked(validator(folder), thinking_token_budget=budget)
    assert caught.value.param == "thinking_token_budget"


async def test_a_budget_that_cannot_be_kept_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ApiError, match="'thinking_token_budget': it asks for reasoning, but this model does not reason"
    ):
        await asked(validator(folder, "{{ messages[0].content }}"), thinking_token_budget=9)
    completion = {"prompt": "hello", "max_tokens": 50, "thinking_token_budget": 5, "guided_regex": "a"}
    with pytest.raises(ApiError, match="not allowed with 'guided_regex' in completions"):
        await validator(folder).completion(validate(CompletionRequest, completion), Caller("tenant"))
    older = {"prompt": ["<think></think>", "hello"], "max_tokens": 50, "thinking_token_budget": 5}  # the second has it
    checker = validator(folder, figures=replace(FIGURES, features=()))
    with pytest.raises(
        ApiError, match="'thinking_token_budget': the engines that run now are of a build that does not"
    ):
        await checker.completion(validate(CompletionRequest, older), Caller("tenant"))
    monkeypatch.setattr("gateway.answer.reading.fixed_tokens", lambda *_: ())
    with pytest.raises(ApiError, match="'</think>', the end of this model's reasoning, is no sequence of tokens"):
        await asked(validator(folder), max_tokens=50, thinking_token_budget=9)


@pytest.mark.parametrize(
    ("added", "text", "tokens"),
    [
        (["</think>"], "\n</think>", ["<0x0A>", "</think>"]),
        (["</think>"], "\n</think>\n", []),  # there is a space after the mark
        ([], "\n</think>\n", ["<0x0A>", *(f"<0x{ord(c):02X}>" for c in "</think>"), "<0x0A>"]),
    ],
)
def test_texts_in_the_middle_where_a_tokenizer_begins_them_with_a_space(
    tmp_path: Path, added: list[str], text: str, tokens: list[str]
) -> None:
    vocab = {f"<0x{i:02X}>": i for i in range(256)} | {"▁": 256, "a": 257, "▁a": 258, "<unk>": 259}
    made = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in added])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.spelled(fixed_tokens(tokenizer, text)) == tokens
