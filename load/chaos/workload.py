"""The requests of a chaos run, a fixed set of all kinds; how an answer differs from the undisturbed one, and how it
breaks the constraint of its request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from load.trace import HttpRequest
from load.workloads import BEGINNINGS, QUESTIONS, paper, text_of
from services.client.sse import Choice, StreamedAnswer

LOGPROB_TOLERANCE = 1e-4  # for transformers' layers in float32, which depend on the batch; the fast path is exact
VECTORS = "/v1/embeddings"
COMMON = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}

# All values are bounded, so that most documents end by themselves.
WORD = {"type": "string", "pattern": "^[a-z]{1,12}$"}
PERSON = {
    "type": "object",
    "properties": {
        "name": WORD,
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "languages": {"type": "array", "items": {"enum": ["English", "French", "Latin"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": WORD, "days": {"anyOf": [{"const": "all"}, {"type": "integer", "maximum": 14}]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
DATE = r"[12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]"
COLOURS = ["red", "yellow and a little green", "blue"]
SCHEMAS: dict[str, dict[str, Any]] = {"get_weather": WEATHER, "add_person": PERSON}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
# settings of a model that writes calls in a format with tags, and whose template opens the reasoning if a request asks
TEMPLATE = Path(__file__).parent / "chat_template.jinja"
REASONS = {"tool_call_parser": "qwen3_coder", "reasoning_parser": "qwen3", "chat_template": str(TEMPLATE)}


def requests(length: int, never: int, prompts: Sequence[int] = (0,), constrained: bool = False) -> list[HttpRequest]:
    """All kinds of requests, greedy or with a seed, so that an answer is always the same. Usual answers have up to
    `length` tokens, short ones a quarter, long ones twice as many; none contains the token `never`. With `constrained`
    also documents, tool calls and reasoning with a budget, for a model with the settings `REASONS`.

    `prompts`: approximate lengths in tokens to which the prompts are extended, in turn. All prompts begin differently,
    so that none is found in the prefix cache.
    """
    kinds = _free(length) + (_constrained(length) + _reasoning(length) if constrained else [])
    made = []
    for number, request in enumerate(kinds):
        body = request.body | {"logit_bias": {str(never): -100}}
        made.append(replace(request, body=_longer(body, number, prompts[number % len(prompts)])))
    return made


def paper_prompts() -> list[int]:
    """The prompt lengths of the paper's trace (section 6.2), U(32, 512)."""
    return [len(request.prompt) for request in paper(16)]


def vectors(never: int, prompts: Sequence[int]) -> list[HttpRequest]:
    """Requests to a model that makes vectors: one text, some, and many, which take several iterations; also token ids,
    none of which is `never`."""
    texts = [f"Part {number + 1}: {text_of(max(1, tokens))}" for number, tokens in enumerate(prompts)]
    ids = [[token for token in range(first, first + 40) if token != never] for first in range(200, 1400, 40)]
    inputs = {"one text": texts[:1], "some texts": texts[1:], "many texts": texts * 8, "token ids": ids}
    common = {"encoding_format": "base64", "truncate_prompt_tokens": -1}
    return [HttpRequest(VECTORS, common | {"input": input}, name) for name, input in inputs.items()]


def naming(kinds: Sequence[HttpRequest], models: Sequence[str]) -> list[HttpRequest]:
    """The requests with these models, or adapters, in turn; an empty one is not named."""
    asked = ((one, models[number % len(models)]) for number, one in enumerate(kinds))
    return [replace(o, body=o.body | {"model": name}, name=f"{o.name}, {name}") if name else o for o, name in asked]


def poison(token: int, for_vectors: bool = False) -> HttpRequest:
    """A request that kills each engine which computes it, if the setting `deadly_token` is `token`."""
    if for_vectors:
        return HttpRequest(VECTORS, {"input": [[10, token, 11]]}, "poison")
    return HttpRequest("/v1/completions", COMMON | {"prompt": [10, token, 11], "max_tokens": 4}, "poison")


def _longer(body: dict[str, Any], number: int, tokens: int) -> dict[str, Any]:
    if not tokens:
        return body
    before = f"Part {number + 1}: {text_of(max(1, tokens - 24))}. "  # 24: about the tokens of the prompt itself
    if "messages" in body:
        return body | {"messages": [one | {"content": before + one["content"]} for one in body["messages"]]}
    prompt = body["prompt"]
    return body | {"prompt": [before + text for text in prompt] if isinstance(prompt, list) else before + prompt}


def _free(length: int) -> list[HttpRequest]:
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": length}
    seeded: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": length}
    short, long = {"max_tokens": max(2, length // 4)}, {"max_tokens": 2 * length, "ignore_eos": True}
    return [
        _completion("greedy", 0, greedy | {"ignore_eos": True}),
        _completion("greedy, short", 1, greedy | short),
        _completion("greedy, long", 2, greedy | long),
        _completion("seeded", 3, seeded | {"ignore_eos": True}),
        _completion("seeded, long, top_p", 4, seeded | long | {"top_p": 0.9}),
        _completion("three choices", 5, seeded | {"n": 3, "top_k": 40}),
        _completion("two prompts", 0, greedy | {"prompt": list(BEGINNINGS[:2])}),
        _completion("stop strings", 1, greedy | long | {"stop": [" the", "e", "\n"], "min_tokens": length // 4}),
        _completion("penalties", 2, greedy | {"presence_penalty": 0.5, "frequency_penalty": 0.5, "ignore_eos": True}),
        _completion("repetition penalty", 3, seeded | {"repetition_penalty": 1.3, "ignore_eos": True}),
        _completion("log probabilities", 4, greedy | {"logprobs": 3, "ignore_eos": True}),
        _chat("chat", 0, greedy),
        _chat("chat, seeded, two choices", 1, seeded | {"n": 2}),
        _chat("chat, log probabilities", 2, seeded | short | {"logprobs": True, "top_logprobs": 2}),
        _chat("chat, stop strings", 3, greedy | {"stop": [".", "a"]}),
    ]


def _constrained(length: int) -> list[HttpRequest]:
    """Requests for documents and tool calls of up to four times `length` tokens."""
    seeded: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": 4 * length}
    named = {"type": "json_schema", "json_schema": {"name": "document", "strict": True, "schema": PERSON}}
    person, tools = {"response_format": named}, {"tools": TOOLS, "tool_choice": "required"}
    one_tool = {"tool_choice": {"type": "function", "function": {"name": "add_person"}}, "parallel_tool_calls": False}
    return [
        _chat("document", 0, seeded | person | {"temperature": 0}),
        _chat("document, two choices", 1, seeded | person | {"n": 2}),
        _chat("document, log probabilities", 3, seeded | person | {"logprobs": True, "top_logprobs": 2}),
        _completion("document, penalties", 0, seeded | person | {"presence_penalty": 0.5, "top_p": 0.95}),
        _completion("regular expression", 2, seeded | {"structured_outputs": {"regex": DATE}}),
        _completion("one of a list", 3, seeded | {"structured_outputs": {"choice": COLOURS}}),
        _chat("tools, two choices", 4, seeded | tools | {"n": 2}),
        _chat("one tool", 5, seeded | tools | one_tool | {"temperature": 0}),
    ]


def _reasoning(length: int) -> list[HttpRequest]:
    """Requests whose reasoning ends at its budget, before the end of the answer."""
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": length // 2}
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 2 * length, "ignore_eos": True}
    seeded: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": 4 * length}
    return [
        _chat("reasoning", 2, greedy | thinking),
        _chat("reasoning, seeded, two choices", 3, greedy | seeded | thinking | {"n": 2}),
        _chat("reasoning and tools", 4, seeded | thinking | {"tools": TOOLS, "tool_choice": "required"}),
    ]


def _completion(name: str, text: int, fields: dict[str, Any]) -> HttpRequest:
    return HttpRequest("/v1/completions", COMMON | {"prompt": BEGINNINGS[text]} | fields, name)


def _chat(name: str, text: int, fields: dict[str, Any]) -> HttpRequest:
    messages = [{"role": "user", "content": QUESTIONS[text]}]
    return HttpRequest("/v1/chat/completions", COMMON | {"messages": messages} | fields, name)


# --- beside the undisturbed answer ---


def difference(expected: StreamedAnswer, got: StreamedAnswer) -> str:
    """How `got` differs from the undisturbed answer; empty if it does not."""
    if expected.choices.keys() != got.choices.keys():
        return f"choices {sorted(got.choices)}, expected {sorted(expected.choices)}"
    if expected.completion_tokens != got.completion_tokens:
        return f"{got.completion_tokens} tokens counted, expected {expected.completion_tokens}"
    differences = ((index, _difference(choice, got.choices[index])) for index, choice in expected.choices.items())
    return next((f"choice {index}: {what}" for index, what in differences if what), "")


def _difference(expected: Choice, got: Choice) -> str:
    for name in ("token_ids", "reasoning", "text", "finish_reason"):
        if getattr(expected, name) != getattr(got, name):
            return f"{name} {getattr(got, name)!r}, expected {getattr(expected, name)!r}"
    calls, due = ([(call.name, call.arguments) for call in one.calls] for one in (got, expected))  # ids are new ones
    if calls != due:
        return f"calls {calls}, expected {due}"
    if len(expected.logprobs) != len(got.logprobs):
        return f"{len(got.logprobs)} log probabilities, expected {len(expected.logprobs)}"
    worst = max((abs(a - b) for a, b in zip(expected.logprobs, got.logprobs, strict=True)), default=0.0)
    return f"a log probability differs by {worst}" if worst > LOGPROB_TOLERANCE else ""


# --- beside its constraint ---


def is_constrained(request: HttpRequest) -> bool:
    return any(field in request.body for field in ("response_format", "structured_outputs", "tools"))


def error_in(request: HttpRequest, answer: StreamedAnswer) -> str:
    """Why a choice that the model ended itself violates the request's constraint, or a choice has no reasoning though
    the request asks for it; empty if none does."""
    if "thinking_token_budget" in request.body and not all(one.reasoning for one in answer.choices.values()):
        return "no reasoning"
    if not is_constrained(request):
        return ""
    ended = [choice for choice in answer.choices.values() if choice.finish_reason not in (None, "length")]
    return next((error for choice in ended if (error := _error(request.body, choice))), "")


def _error(body: dict[str, Any], choice: Choice) -> str:
    if "tools" in body:
        names = list(SCHEMAS) if body["tool_choice"] == "required" else [body["tool_choice"]["function"]["name"]]
        if not choice.calls or choice.finish_reason != "tool_calls":
            return f"{len(choice.calls)} calls and the text {choice.text!r}, finish_reason {choice.finish_reason!r}"
        errors = [_error_of(c.arguments, SCHEMAS[c.name]) if c.name in names else c.name for c in choice.calls]
        return next((f"call of {names}: {error}" for error in errors if error), "")
    if "response_format" in body:
        return _error_of(choice.text, PERSON)
    allowed = body["structured_outputs"]
    held = choice.text in allowed["choice"] if "choice" in allowed else re.fullmatch(allowed["regex"], choice.text)
    return "" if held else f"{choice.text!r} is not one of {allowed}"


def _error_of(text: str, schema: dict[str, Any]) -> str:
    """Why `text` is not JSON that is valid by `schema`; empty if it is."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except ValueError as error:
        return f"not JSON, {error}: {text}"
    except jsonschema.ValidationError as error:
        return f"{error.message}: {text}"
    return ""
