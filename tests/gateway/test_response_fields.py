"""The fields that `POST /v1/responses` accepts and refuses, and the errors."""

from __future__ import annotations

from typing import Any

import openai_document
import pytest

from gateway.errors import ApiError, Kind
from gateway.http.body import validate
from gateway.responses.validation import turns
from gateway.schemas.responses import LOGPROBS, ResponseRequest

OUTPUT = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}],
}
NEUTRAL = {
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_tool_calls": 3,
    "reasoning": {"effort": None},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "truncation": "disabled",
    "include": [],
    "stream_options": None,
    "service_tier": "auto",
    "user": "me",
    "safety_identifier": "me",
    "prompt_cache_key": "x",
    "client_metadata": {"x-installation-id": "a", "n": 1},
    "n": 1,
    "return_token_ids": False,
}
# error -> (fields, `param`)
INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"input": None}, "input"),
    "an empty list": ({"input": []}, "input"),
    "an empty string": ({"input": ""}, "input"),
    "an empty list as content": ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    "a message as text": ({"input": ["hi"]}, "input[0]"),
    "a message without content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "an unknown role": ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    "no role": ({"input": [{"content": "a"}]}, "input[0].role"),
    "a call without a name": (
        {"input": [{"type": "function_call", "call_id": "a", "arguments": "{}"}]},
        "input[0].name",
    ),
    "an output of no call": ({"input": [{"type": "function_call_output", "output": "b"}]}, "input[0].call_id"),
    "a part without text": ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content"),
    "a number of tokens below 1": ({"max_output_tokens": 0}, "max_output_tokens"),
    "background without store": ({"background": True, "store": False}, "background"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "top_logprobs over 20": ({"top_logprobs": 21, "include": [LOGPROBS]}, "top_logprobs"),
    "stream_options alone": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "a class beyond the last": ({"priority": 9}, "priority"),
    "no time to the first token": ({"ttft_target": 0}, "ttft_target"),
    "an unknown tier": ({"service_tier": "ultrafast"}, "service_tier"),
    "two classes": ({"service_tier": "default", "priority": 1}, "priority"),
    "much metadata": ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    "long metadata": ({"metadata": {"a": "b" * 513}}, "metadata.a"),
    "a long user": ({"user": "a" * 513}, "user"),
    "an unknown verbosity": ({"text": {"verbosity": "none"}}, "text.verbosity"),
    "client_metadata that is no object": ({"client_metadata": "a"}, "client_metadata"),
    "an unknown effort": ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    "an empty id": ({"previous_response_id": ""}, "previous_response_id"),
}
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "tools": ({"tools": [{"type": "web_search"}]}, "tools"),
    "reasoning": ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    "truncation": ({"truncation": "auto"}, "truncation"),
    "a conversation": ({"conversation": "conv_1"}, "conversation"),
    "a prompt of the dashboard": ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    "another thing to include": ({"include": ["message.smell"]}, "include"),
    "several choices": ({"n": 2}, "n"),
    "chat's maximum": ({"max_tokens": 5}, "max_tokens"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    "a call of another tool": ({"input": [{"type": "web_search_call", "id": "a"}]}, "input[0].type"),
    "an unknown field": ({"nonsense": 1}, "nonsense"),
    "an unknown field of a message": ({"input": [{"role": "user", "content": "a", "x": 1}]}, "input[0].x"),
}


def parsed(**fields: Any) -> ResponseRequest:
    return validate(ResponseRequest, {"input": "hi"} | fields)


def test_every_field_of_the_document_is_known() -> None:
    assert openai_document.fields("CreateResponse") <= set(ResponseRequest.model_fields)


def test_input_becomes_messages() -> None:
    assert [(m.role, m.content) for m in parsed().messages] == [("user", "hi")]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    fields = parsed(input=[{"role": "developer", "content": parts}, OUTPUT, {"role": "user", "content": "c"}])
    assert [(m.role, m.content) for m in fields.messages] == [("developer", "ab"), ("assistant", "yes"), ("user", "c")]


CALLS = [{"type": "function_call", "call_id": id, "name": "f", "arguments": f'{{"a": "{id}"}}'} for id in ("c1", "c2")]
OUTPUTS = [{"type": "function_call_output", "call_id": id, "output": f"of {id}"} for id in ("c1", "c2")]
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "because"}]}


def test_calls_and_reasoning_belong_to_the_turn_of_the_assistant() -> None:
    """Items that agents send back are stored one by one, and the template receives turns."""
    user = {"role": "user", "content": "go"}
    fields = parsed(input=[user, REASONING, OUTPUT, *CALLS, *OUTPUTS, REASONING, *CALLS[:1], *OUTPUTS[:1], user])
    assert len(fields.messages) == len(fields.item_ids) == 11
    said = [message.for_template() for message in turns(fields.messages)]
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "tool", "assistant", "tool", "user"]
    first, second = said[1], said[4]
    assert (first["content"], first["reasoning_content"]) == ("yes", "because")
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == [{"a": "c1"}, {"a": "c2"}]
    assert (second["content"], second["reasoning_content"]) == ("", "because")
    assert [call["id"] for call in second["tool_calls"]] == ["c1"]
    assert [message["content"] for message in said if message["role"] == "tool"] == ["of c1", "of c2", "of c1"]


def test_what_one_answer_wrote_is_one_turn() -> None:
    """Text after a call, and an answer that ended within its reasoning."""
    user = {"role": "user", "content": "go"}
    said = [message.for_template() for message in turns(parsed(input=[*CALLS, OUTPUT, user, REASONING, user]).messages)]
    assert [message["role"] for message in said] == ["assistant", "user", "assistant", "user"]
    assert said[0]["content"] == "yes"
    assert [call["id"] for call in said[0]["tool_calls"]] == ["c1", "c2"]
    assert (said[2]["content"], said[2]["reasoning_content"]) == ("", "because")
    (last,) = turns(parsed(input=[REASONING]).messages)
    assert last.reasoning_content == "because"


def test_fields_that_do_not_change_tokens_are_accepted() -> None:
    assert parsed(**NEUTRAL).sampling(5, seed=1) == parsed().sampling(5, seed=1)


def test_sampling_is_as_in_chat() -> None:
    asked = parsed(temperature=0, seed=7, top_k=4, stop="x", max_output_tokens=9, include=[LOGPROBS], top_logprobs=2)
    sampling = asked.sampling(9, seed=1)
    assert (sampling.temperature, sampling.seed, sampling.top_k) == (0, 7, 4)
    assert (sampling.stop, sampling.logprobs) == (("x",), 2)
    assert asked.requested_max_tokens == 9
    assert parsed(include=[LOGPROBS]).requested_logprobs == 0
    assert parsed(top_logprobs=0).requested_logprobs is None


@pytest.mark.parametrize(("fields", "param"), INVALID.values(), ids=INVALID)
def test_errors_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parsed(**fields)
    assert (refused.value.kind, refused.value.param) == (Kind.INVALID, param)


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_errors_name_unsupported_fields(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parsed(**fields)
    assert (refused.value.kind, refused.value.param) == (Kind.UNSUPPORTED, param)
