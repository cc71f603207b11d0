"""Invalid input gets an OpenAI error object with the right status, and the server continues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from gateway import validation
from gateway.answer.choice import failure
from gateway.errors import Kind
from services.messages import End
from services.requests import NO_TOKEN_LEFT, FinishReason

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]

# error -> (fields, status, a word of `param` or the message)
COMPLETION: dict[str, tuple[dict[str, Any], int, str]] = {
    "no prompt": ({}, 400, "prompt"),
    "null prompt": ({"prompt": None}, 400, "prompt"),
    "empty prompt": ({"prompt": ""}, 400, "prompt"),
    "empty list": ({"prompt": []}, 400, "prompt"),
    "an empty prompt among others": ({"prompt": ["hi", ""]}, 400, "prompt"),
    "log probabilities of output": ({"prompt": "a", "n": 128, "logprobs": 20, "max_tokens": 150}, 400, "403200"),
    "log probabilities of prompts": ({"prompt": [[1] * 300], "n": 128, "prompt_logprobs": 20}, 400, "806400"),
    "log probabilities of an echo": (
        {"prompt": [[1] * 300], "n": 128, "echo": True, "logprobs": 20, "max_tokens": 1, "stream": True},
        400,
        "806400",
    ),
    "an empty list of ids": ({"prompt": [[]]}, 400, "prompt"),
    "a number as prompt": ({"prompt": 5}, 400, "prompt"),
    "an object as prompt": ({"prompt": {"text": "hi"}}, 400, "prompt"),
    "a mixed list of ids": ({"prompt": [1, "a"]}, 400, "prompt"),
    "booleans as ids": ({"prompt": [True, False]}, 400, "prompt"),
    "a fraction as id": ({"prompt": [1.5]}, 400, "prompt"),
    "an id beyond 64 bits": ({"prompt": [1, 1e30]}, 400, "prompt"),
    "2,049 prompts": ({"prompt": ["a"] * 2049}, 400, "2049"),
    "too many choices in all": ({"prompt": ["a"] * 1000, "n": 128}, 400, "128000"),
    "best_of": ({"prompt": "hi", "best_of": 2}, 400, "best_of"),
    "echo as a number": ({"prompt": "hi", "echo": 1}, 400, "echo"),
    "prompt_logprobs 21": ({"prompt": "hi", "prompt_logprobs": 21}, 400, "prompt_logprobs"),
    "prompt_logprobs -1": ({"prompt": "hi", "prompt_logprobs": -1}, 400, "prompt_logprobs"),
    "prompt_logprobs in a stream": ({"prompt": "hi", "prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
    "min_tokens over no tokens": ({"prompt": "hi", "max_tokens": 0, "min_tokens": 1}, 400, "min_tokens"),
    "suffix": ({"prompt": "hi", "suffix": "."}, 400, "suffix"),
    "logprobs 21": ({"prompt": "hi", "logprobs": 21}, 400, "logprobs"),
    "logprobs true": ({"prompt": "hi", "logprobs": True}, 400, "logprobs"),
    "chat's field": ({"prompt": "hi", "max_completion_tokens": 5}, 400, "max_completion_tokens"),
    "prompt over the model's length": ({"prompt": [5] * 513}, 400, "512"),
    "prompt that leaves no room": ({"prompt": [5] * 512}, 400, "512"),
    "prompt over the KV slots": ({"prompt": [5] * 400}, 400, "400"),
}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [choice(name) for name in names]}}


CHAT_FIELDS: dict[str, tuple[dict[str, Any], int, str]] = {
    "no messages": ({"messages": None}, 400, "messages"),
    "empty messages": ({"messages": []}, 400, "messages"),
    "messages as text": ({"messages": "hi"}, 400, "messages"),
    "a message as text": ({"messages": ["hi"]}, 400, "messages[0]"),
    "a message without role": ({"messages": [{"content": "hi"}]}, 400, "messages[0].role"),
    "a message without content": ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    "null content": ({"messages": [{"role": "user", "content": None}]}, 400, "messages[0].content"),
    "an unknown role": ({"messages": [{"role": "king", "content": "hi"}]}, 400, "messages[0].role"),
    "a tool's message without content": ({"messages": [{"role": "tool"}]}, 400, "messages[0].content"),
    "a user who calls tools": (
        {"messages": [{**MESSAGES[0], "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        400,
        "messages[0].tool_calls",
    ),
    "a prefix of a message": ({"messages": [{**MESSAGES[0], "prefix": True}]}, 400, "messages[0].prefix"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages[0].content",
    ),
    "a tool call": ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, 400, "tool_calls"),
    "max_tokens 0": ({"max_tokens": 0}, 400, "max_tokens"),
    "echo": ({"echo": True}, 400, "echo"),
    "log probabilities of output": ({"n": 128, "logprobs": True, "top_logprobs": 20, "max_tokens": 150}, 400, "403200"),
    "prompt_logprobs 21": ({"prompt_logprobs": 21}, 400, "prompt_logprobs"),
    "prompt_logprobs in a stream": ({"prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
    "max_tokens twice": ({"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_completion_tokens"),
    "an open message and another": (
        {"continue_final_message": True, "add_generation_prompt": True},
        400,
        "continue_final_message",
    ),
    "chat_template_kwargs": ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
    "a special token as a variable": ({"chat_template_kwargs": {"eos_token": ""}}, 400, "chat_template_kwargs"),
    "33 variables": ({"chat_template_kwargs": {f"v{i}": 1 for i in range(33)}}, 400, "chat_template_kwargs"),
    "a long variable": ({"chat_template_kwargs": {"a": "b" * 16_384}}, 400, "chat_template_kwargs"),
    "an unknown effort": ({"reasoning_effort": "extreme"}, 400, "reasoning_effort"),
    "add_special_tokens 2": ({"add_special_tokens": 2}, 400, "add_special_tokens"),
    "top_logprobs alone": ({"top_logprobs": 2}, 400, "top_logprobs"),
    "top_logprobs 21": ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    "logprobs as a number": ({"logprobs": 2}, 400, "logprobs"),
    "a tool of another type": ({"tools": [{"type": "mcp", "name": "f"}]}, 400, "'mcp'"),
    "a custom tool without a name": ({"tools": [{"type": "custom", "custom": {}}]}, 400, "tools[0].custom.name"),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name"),
    "a tool's name with a space": ({"tools": [tool("a b")]}, 400, "tools[0].function.name"),
    "a tool's name of 65 letters": ({"tools": [tool("a" * 65)]}, 400, "tools[0].function.name"),
    "parameters that are a list": ({"tools": [tool("f", {"type": "array"})]}, 400, "tools[0].function.parameters"),
    "129 tools": ({"tools": [tool(f"f{i}") for i in range(129)]}, 400, "tools"),
    "two tools of one name": ({"tools": [tool("f"), tool("f")]}, 400, "'f'"),
    "required without tools": ({"tool_choice": "required"}, 400, "tool_choice"),
    "required among no tools": ({"tools": [], "tool_choice": "required"}, 400, "tool_choice"),
    "an unknown tool": ({"tools": [tool("f")], "tool_choice": choice("g")}, 400, "'g'"),
    "an unknown choice": ({"tools": [tool("f")], "tool_choice": "always"}, 400, "tool_choice"),
    "a choice of another type": ({"tools": [tool("f")], "tool_choice": {"type": "mcp"}}, 400, "mcp"),
    "an allowed tool that is unknown": ({"tools": [tool("f")], "tool_choice": allowed("auto", "f", "g")}, 400, "'g'"),
    "no allowed tools": ({"tools": [tool("f")], "tool_choice": allowed("auto")}, 400, "tool_choice"),
    "functions": ({"functions": [{"name": "f"}]}, 400, "'tools'"),
    "function_call": ({"function_call": {"name": "f"}}, 400, "'tool_choice'"),
    "audio": ({"audio": {"voice": "x", "format": "wav"}}, 400, "audio"),
    "modalities": ({"modalities": ["text", "audio"]}, 400, "modalities"),
    "prediction": ({"prediction": {"type": "content", "content": "x"}}, 400, "prediction"),
    "reasoning_effort": ({"reasoning_effort": "high"}, 400, "reasoning_effort"),
    "an unknown verbosity": ({"verbosity": "none"}, 400, "verbosity"),
    "client_metadata": ({"client_metadata": {"a": "b"}}, 400, "client_metadata"),
    "web_search_options": ({"web_search_options": {}}, 400, "web_search_options"),
    "moderation": ({"moderation": {"model": "x"}}, 400, "moderation"),
}

BOTH: dict[str, tuple[dict[str, Any], int, str]] = {
    "an unknown model": ({"model": "gpt-17"}, 404, "gpt-17"),
    "a model that is no name": ({"model": 5}, 400, "model"),
    "an unknown field": ({"temprature": 1}, 400, "temprature"),
    "a field that could change tokens": ({"guided_decoding_backend": "outlines"}, 400, "guided_decoding_backend"),
    "bad_words as a text": ({"bad_words": "a"}, 400, "bad_words"),
    "bad_words empty": ({"bad_words": [""]}, 400, "bad_words"),
    "bad_words of spaces": ({"bad_words": ["a", "  "]}, 400, "has no tokens"),
    "129 bad_words": ({"bad_words": [f"w{i}" for i in range(129)]}, 400, "129"),
    "a long bad word": ({"bad_words": ["é" * 129]}, 400, "258"),
    "no token is left at first": ({"allowed_token_ids": [2], "stop_token_ids": [2], "min_tokens": 1}, 400, "no token"),
    "allowed_token_ids empty": ({"allowed_token_ids": []}, 400, "allowed_token_ids"),
    "16,385 allowed_token_ids": ({"allowed_token_ids": [1] * 16_385}, 400, "16384"),
    "truncate_prompt_tokens 0": ({"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
    "truncate_prompt_tokens -2": ({"truncate_prompt_tokens": -2}, 400, "-2"),
    "truncation_side": ({"truncation_side": "middle"}, 400, "truncation_side"),
    "skip_special_tokens as a text": ({"skip_special_tokens": "no"}, 400, "skip_special_tokens"),
    "include_stop_str_in_output 1": ({"include_stop_str_in_output": 1}, 400, "include_stop_str_in_output"),
    "n 0": ({"n": 0}, 400, "n"),
    "n 129": ({"n": 129}, 400, "129"),
    "n a fraction": ({"n": 1.5}, 400, "n"),
    "max_tokens negative": ({"max_tokens": -5}, 400, "-5"),
    "max_tokens a text": ({"max_tokens": "5"}, 400, "max_tokens"),
    "max_tokens true": ({"max_tokens": True}, 400, "max_tokens"),
    "max_tokens over the KV slots": ({"max_tokens": 400}, 400, "400"),
    "max_tokens over the model's length": ({"max_tokens": 512}, 400, "512"),
    "max_tokens huge": ({"max_tokens": 2**60}, 400, str(2**60)),
    "max_tokens beyond 64 bits": ({"max_tokens": 10.0**30}, 400, "max_tokens"),
    "temperature negative": ({"temperature": -0.1}, 400, "temperature"),
    "temperature 2.1": ({"temperature": 2.1}, 400, "2.1"),
    "temperature huge": ({"temperature": 1e308}, 400, "temperature"),
    "temperature a text": ({"temperature": "0"}, 400, "temperature"),
    "top_p -0.1": ({"top_p": -0.1}, 400, "top_p"),
    "top_p 1.1": ({"top_p": 1.1}, 400, "top_p"),
    "top_k -2": ({"top_k": -2}, 400, "top_k"),
    "min_p 1.1": ({"min_p": 1.1}, 400, "min_p"),
    "presence_penalty 2.1": ({"presence_penalty": 2.1}, 400, "presence_penalty"),
    "frequency_penalty -2.1": ({"frequency_penalty": -2.1}, 400, "frequency_penalty"),
    "repetition_penalty 0": ({"repetition_penalty": 0}, 400, "repetition_penalty"),
    "repetition_penalty 1e-38": ({"repetition_penalty": 1e-38}, 400, "repetition_penalty"),
    "repetition_penalty 11": ({"repetition_penalty": 11}, 400, "repetition_penalty"),
    "seed beyond 64 bits": ({"seed": 2.0**64}, 400, "seed"),
    "min_tokens negative": ({"min_tokens": -1}, 400, "min_tokens"),
    "min_tokens over max_tokens": ({"min_tokens": 6, "max_tokens": 5}, 400, "min_tokens"),
    "10,000 stop strings": ({"stop": ["a"] * 10_000}, 400, "10000"),
    "an empty stop string": ({"stop": ""}, 400, "stop"),
    "an endless stop string": ({"stop": "a" * 2000}, 400, "2000"),
    "a number as stop": ({"stop": [1]}, 400, "stop"),
    "too many stop tokens": ({"stop_token_ids": [1] * 129}, 400, "stop_token_ids"),
    "logit_bias a list": ({"logit_bias": [1]}, 400, "logit_bias"),
    "logit_bias of no token": ({"logit_bias": {"aardvark": 1}}, 400, "'aardvark'"),
    "logit_bias 101": ({"logit_bias": {"5": 101}}, 400, "got 101"),
    "logit_bias a text": ({"logit_bias": {"5": "1"}}, 400, "logit_bias"),
    "logit_bias of 1,025 tokens": ({"logit_bias": {str(i): 1 for i in range(1025)}}, 400, "1025"),
    "stream a text": ({"stream": "yes"}, 400, "stream"),
    "stream_options alone": ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    "an unknown stream option": ({"stream": True, "stream_options": {"x": 1}}, 400, "stream_options.x"),
    "priority 9": ({"priority": 9}, 400, "priority"),
    "priority -9": ({"priority": -9}, 400, "-9"),
    "priority a fraction": ({"priority": 0.5}, 400, "priority"),
    "priority true": ({"priority": True}, 400, "priority"),
    "ttft_target 0": ({"ttft_target": 0}, 400, "ttft_target"),
    "ttft_target over an hour": ({"ttft_target": 3601}, 400, "3601"),
    "ttft_target a text": ({"ttft_target": "1"}, 400, "ttft_target"),
    "an unknown service_tier": ({"service_tier": "scale"}, 400, "service_tier"),
    "a priority that is not the tier's": ({"service_tier": "flex", "priority": 2}, 400, "priority"),
    "metadata that is none": ({"metadata": {"a": 1}}, 400, "metadata"),
}

OTHER: dict[str, tuple[str, str, Any, int, str]] = {
    "no such route": ("GET", "/v1/nothing", None, 404, "/v1/nothing"),
    "no such method": ("GET", COMPLETIONS, None, 405, "Method"),
    "no such model": ("GET", "/v1/models/gpt-17", None, 404, "gpt-17"),
    "tokenize nothing": ("POST", "/tokenize", {}, 400, "prompt"),
    "tokenize both": ("POST", "/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "prompt"),
    "tokenize for another model": ("POST", "/tokenize", {"prompt": "a", "model": "x"}, 404, "x"),
    "detokenize text": ("POST", "/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
}


def _cases() -> Iterator[Any]:
    for name, (fields, status, named) in COMPLETION.items():
        yield pytest.param("POST", COMPLETIONS, orjson.dumps(fields), status, named, id=name)
    for name, (fields, status, named) in CHAT_FIELDS.items():
        yield pytest.param("POST", CHAT, orjson.dumps({"messages": MESSAGES} | fields), status, named, id=name)
    for name, (fields, status, named) in BOTH.items():
        body = orjson.dumps({"prompt": "hi"} | fields)
        yield pytest.param("POST", COMPLETIONS, body, status, named, id=f"completion: {name}")
        body = orjson.dumps({"messages": MESSAGES} | fields)
        yield pytest.param("POST", CHAT, body, status, named, id=f"chat: {name}")
    for name, (method, path, fields, status, named) in OTHER.items():
        body = b"" if fields is None else orjson.dumps(fields)
        yield pytest.param(method, path, body, status, named, id=name)


def check_error(response: httpx.Response, status: int, named: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert named in f"{error['param']} {error['message']}", error
    return error


@pytest.mark.parametrize(("method", "path", "body", "status", "named"), list(_cases()))
def test_bad_input(http: httpx.Client, method: str, path: str, body: bytes, status: int, named: str) -> None:
    check_error(http.request(method, path, content=body), status, named)
    good = http.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 2})
    assert good.json()["choices"][0]["text"] == "hi"


def test_log_probabilities_of_a_streamed_output_are_not_limited(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "MAX_LOGPROBS", 17)
    body = {"prompt": "hi", "max_tokens": 3, "logprobs": 5}
    check_error(http.post(COMPLETIONS, json=body), 400, "18")
    assert http.post(COMPLETIONS, json=body | {"stream": True}).status_code == 200
    assert http.post(COMPLETIONS, json=body | {"max_tokens": 2}).status_code == 200


def test_a_request_without_any_token_left_is_a_client_error() -> None:
    error = failure(End(FinishReason.ERROR, error=NO_TOKEN_LEFT))
    assert error is not None
    assert error.kind is Kind.INVALID


def test_lengths_have_their_own_code(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 511})
    assert check_error(response, 400, "512")["code"] == "context_length_exceeded"
    response = http.post(CHAT, json={"messages": MESSAGES, "max_tokens": 400})
    assert check_error(response, 400, "400 tokens")["code"] == "context_length_exceeded"


def test_a_refusal_is_counted(http: httpx.Client) -> None:
    http.post(COMPLETIONS, json={"prompt": ""})
    for _ in range(30):
        if 'vllm:admission_rejections_total{model_name="tiny",reason="invalid"}' in http.get("/metrics").text:
            return
        time.sleep(0.1)
    raise AssertionError("not within 3 s")
