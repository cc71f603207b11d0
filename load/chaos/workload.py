"""The requests of a chaos run, a fixed set of all kinds, and the comparison of an answer with the undisturbed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from load.trace import HttpRequest
from load.workloads import BEGINNINGS, QUESTIONS, paper, text_of
from services.client.sse import Choice, StreamedAnswer

LOGPROB_TOLERANCE = 1e-4  # for transformers' layers in float32, which depend on the batch; the fast path is exact
COMMON = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}


def requests(
    length: int, never: int, prompts: Sequence[int] = (0,), others: Sequence[HttpRequest] = ()
) -> list[HttpRequest]:
    """All kinds of requests, greedy or with a seed, so that an answer is always the same. Usual answers have up to
    `length` tokens, short ones a quarter, long ones twice as many; none contains the token `never`. `others` come
    after them, changed in the same way.

    `prompts`: approximate lengths in tokens to which the prompts are extended, in turn. All prompts begin differently,
    so that none is found in the prefix cache.
    """
    made = []
    for number, request in enumerate([*_requests(length), *others]):
        body = request.body | {"logit_bias": {str(never): -100}}
        made.append(replace(request, body=_longer(body, number, prompts[number % len(prompts)])))
    return made


def paper_prompts() -> list[int]:
    """The prompt lengths of the paper's trace (section 6.2), U(32, 512)."""
    return [len(request.prompt) for request in paper(16)]


def _longer(body: dict[str, Any], number: int, tokens: int) -> dict[str, Any]:
    if not tokens:
        return body
    before = f"Part {number + 1}: {text_of(max(1, tokens - 24))}. "  # 24: about the tokens of the prompt itself
    if "messages" in body:
        messages = [message | {"content": before + message["content"]} for message in body["messages"]]
        return body | {"messages": messages}
    prompt = body["prompt"]
    return body | {"prompt": [before + text for text in prompt] if isinstance(prompt, list) else before + prompt}


def _requests(length: int) -> list[HttpRequest]:
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


def poison(token: int) -> HttpRequest:
    """A request that kills each engine which computes it, if the setting `deadly_token` is `token`."""
    return HttpRequest("/v1/completions", COMMON | {"prompt": [10, token, 11], "max_tokens": 4}, "poison")


def _completion(name: str, text: int, fields: dict[str, Any]) -> HttpRequest:
    return HttpRequest("/v1/completions", COMMON | {"prompt": BEGINNINGS[text]} | fields, name)


def _chat(name: str, text: int, fields: dict[str, Any]) -> HttpRequest:
    messages = [{"role": "user", "content": QUESTIONS[text]}]
    return HttpRequest("/v1/chat/completions", COMMON | {"messages": messages} | fields, name)


def difference(expected: StreamedAnswer, got: StreamedAnswer) -> str:
    """How `got` differs from the undisturbed answer; empty if it does not."""
    if expected.choices.keys() != got.choices.keys():
        return f"choices {sorted(got.choices)}, expected {sorted(expected.choices)}"
    if expected.completion_tokens != got.completion_tokens:
        return f"{got.completion_tokens} tokens counted, expected {expected.completion_tokens}"
    differences = ((index, _difference(choice, got.choices[index])) for index, choice in expected.choices.items())
    return next((f"choice {index}: {what}" for index, what in differences if what), "")


def _difference(expected: Choice, got: Choice) -> str:
    for name in ("token_ids", "text", "finish_reason"):
        if getattr(expected, name) != getattr(got, name):
            return f"{name} {getattr(got, name)!r}, expected {getattr(expected, name)!r}"
    if _calls(expected) != _calls(got):
        return f"calls {_calls(got)}, expected {_calls(expected)}"
    if len(expected.logprobs) != len(got.logprobs):
        return f"{len(got.logprobs)} log probabilities, expected {len(expected.logprobs)}"
    differences = _deviations(expected, got)
    worst = max(differences, default=0.0)
    if worst <= LOGPROB_TOLERANCE:
        return ""
    return f"log probability {differences.index(worst)} differs by {worst}, {sum(map(bool, differences))} differ at all"


def _calls(choice: Choice) -> list[tuple[str, str]]:
    """Names and arguments: the ids of calls are those of one request."""
    return [(call.name, call.arguments) for call in choice.calls]


def deviation(expected: StreamedAnswer, got: StreamedAnswer) -> float:
    """The largest difference of a log probability in all choices, as far as both answers go."""
    both = [(choice, got.choices[index]) for index, choice in expected.choices.items() if index in got.choices]
    return max((worst for pair in both for worst in _deviations(*pair)), default=0.0)


def _deviations(expected: Choice, got: Choice) -> list[float]:
    return [abs(a - b) for a, b in zip(expected.logprobs, got.logprobs, strict=False)]
