"""The input items and input tokens of responses, and answers that become the next turn's input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import openai_document
import orjson
import pytest
from stack import NAME, Stack

from gateway.responses.stored import Extra
from gateway.schemas.chat import Message
from gateway.schemas.responses import INCLUDABLE
from services.settings.settings import Settings

PATH = "/v1/responses"


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


# --- items ---------------------------------------------------------------------------------------------------


def test_the_items_of_a_text(client: openai.OpenAI) -> None:
    made = client.responses.create(model=NAME, input="hi", instructions="not an item")
    (item,) = client.responses.input_items.list(made.id)
    assert item.type == "message"
    assert (item.role, item.status) == ("user", "completed")
    assert texts([item]) == ["hi"]


def test_pages(client: openai.OpenAI) -> None:
    said: Any = [{"role": "user", "content": str(i)} for i in range(5)]
    made = client.responses.create(model=NAME, input=said, max_output_tokens=1)
    backwards = client.responses.input_items.list(made.id, limit=2)
    assert texts(backwards.data) == ["4", "3"]
    assert backwards.has_next_page()
    assert texts(backwards) == ["4", "3", "2", "1", "0"]  # the client requests the next pages
    forwards = client.responses.input_items.list(made.id, limit=3, order="asc", after=list(backwards)[-1].id)
    assert texts(forwards.data) == ["1", "2", "3"]
    assert texts(forwards) == ["1", "2", "3", "4"]


def test_the_pages_are_as_the_document_says(http: httpx.Client, client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input="hi")
    made = client.responses.create(model=NAME, input="a", previous_response_id=first.id)
    whole = http.get(f"{PATH}/{made.id}/input_items").json()
    openai_document.check("ResponseItemList", whole)
    assert (whole["first_id"], whole["last_id"]) == (whole["data"][0]["id"], whole["data"][-1]["id"])
    assert whole["has_more"] is False
    rest = http.get(f"{PATH}/{made.id}/input_items", params={"after": whole["last_id"]}).json()
    openai_document.check("ResponseItemList", rest)
    assert rest["data"] == []


def test_earlier_turns_keep_their_ids(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input="hi")
    second = client.responses.create(model=NAME, input="a", previous_response_id=first.id)
    third = client.responses.create(model=NAME, input="b", previous_response_id=second.id)
    items = list(client.responses.input_items.list(third.id, order="asc"))
    assert texts(items) == ["hi", "hi", "a", "hi", "b"]
    (asked_first,) = client.responses.input_items.list(first.id)
    assert [items[0].id, items[1].id] == [asked_first.id, first.output[0].id]
    assert [i.id for i in items[:3]] == [i.id for i in client.responses.input_items.list(second.id, order="asc")]
    assert len({i.id for i in items}) == 5


def test_a_given_id_is_kept_unless_it_is_a_duplicate(client: openai.OpenAI) -> None:
    said: Any = [{"role": "user", "content": c, "id": id} for c, id in (("a", "mine"), ("b", "mine"), ("c", "x" * 65))]
    made = client.responses.create(model=NAME, input=said)
    ids = [item.id for item in client.responses.input_items.list(made.id, order="asc")]
    assert ids[0] == "mine"
    assert len(set(ids)) == 3
    assert max(map(len, ids)) <= 64


def test_another_gateway_lists_the_same(
    client: openai.OpenAI, http: httpx.Client, redis_url: str, tiny_folder: Path
) -> None:
    made = client.responses.create(model=NAME, input="hi")
    with Stack(redis_url, "served", tiny_folder, Settings(), engine=False) as other:
        http_of_other = other.http
        path = f"{PATH}/{made.id}/input_items"
        assert http_of_other.get(path).json() == http.get(path).json()


def test_a_response_of_an_older_build_has_ids_too() -> None:
    said = [Message(role="user", content="hi"), Message(role="assistant", content="ho")]
    older = orjson.dumps({"echo": {}, "conversation": [[m.role, m.content] for m in said]})
    assert Extra.unpack(older) == Extra({}, said, [None, None])


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=msg_0", "after"),
        ("include=x", "include"),
        ("include[]=x", "include"),
    ],
)
def test_errors_name_a_wrong_page_parameter(client: openai.OpenAI, http: httpx.Client, query: str, named: str) -> None:
    id = client.responses.create(model=NAME, input="hi").id
    refused = http.get(f"{PATH}/{id}/input_items?{query}")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == named


def test_an_unknown_response_has_no_items(client: openai.OpenAI) -> None:
    hidden = client.responses.create(model=NAME, input="hi", store=False).id
    for id in ("resp_0", hidden):
        with pytest.raises(openai.NotFoundError, match=id):
            client.responses.input_items.list(id)


# --- what may be included ------------------------------------------------------------------------------------


def test_the_document_s_list_of_includables() -> None:
    assert set(openai_document.schema("IncludeEnum")["enum"]) == INCLUDABLE


def test_all_values_of_include_are_accepted(client: openai.OpenAI) -> None:
    everything: Any = sorted(INCLUDABLE)
    made = client.responses.create(model=NAME, input="hi", include=everything, top_logprobs=1)
    (output,) = made.output
    assert output.type == "message"
    assert output.content[0].type == "output_text"
    assert output.content[0].logprobs
    (item,) = client.responses.input_items.list(made.id, include=everything)
    assert texts([item]) == ["hi"]
    plain = client.responses.create(model=NAME, input="hi", include=["reasoning.encrypted_content"])
    assert plain.output[0].model_dump()["content"][0]["logprobs"] == []


# --- tokens --------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_prompt(client: openai.OpenAI, http: httpx.Client) -> None:
    first = client.responses.create(model=NAME, input="hi")
    asked: list[Any] = [
        {"input": "né 🐳"},
        {"input": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}], "instructions": "c"},
        {"input": "a", "previous_response_id": first.id, "instructions": "x"},
        {"input": "a b c d", "extra_body": {"truncate_prompt_tokens": 3}},
        {"input": "a b c d", "extra_body": {"truncate_prompt_tokens": -1, "max_output_tokens": 395}},
    ]
    for body in asked:
        counted = client.responses.input_tokens.count(model=NAME, **body)
        usage = client.responses.create(model=NAME, **body).usage
        assert usage is not None
        assert counted.input_tokens == usage.input_tokens
    openai_document.check("TokenCountsResource", http.post(f"{PATH}/input_tokens", json=asked[0]).json())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": "refuse me"}, "input"),
        ({"input": None}, "input"),
        ({"input": "a", "model": "gpt-17"}, "model"),
        ({"input": "a", "previous_response_id": "resp_0"}, "previous_response_id"),
        ({"input": "a", "personality": "friendly"}, "personality"),
        ({"input": "a", "nonsense": 1}, "nonsense"),
    ],
)
def test_errors_of_counting(http: httpx.Client, fields: dict[str, Any], named: str) -> None:
    refused = http.post(f"{PATH}/input_tokens", json=fields)
    assert refused.status_code in (400, 404)
    assert refused.json()["error"]["param"] == named


# --- answers in the history -------------------------------------------------------------------------


def test_output_is_the_next_turn_s_input(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input="hi", include=["message.output_text.logprobs"])
    parsed = client.responses.parse(model=NAME, input="hi")
    question: Any = {"role": "user", "content": "a"}
    objects: Any = [{"role": "user", "content": "hi"}, *first.output, question]
    dumped: Any = [{"role": "user", "content": "hi"}, *[item.model_dump() for item in parsed.output], question]
    turns = [client.responses.create(model=NAME, input=turn) for turn in (objects, dumped)]
    turns.append(client.responses.create(model=NAME, input=[question], previous_response_id=first.id))
    tokens = [turn.usage.input_tokens for turn in turns if turn.usage]
    assert len(set(tokens)) == 1
    assert {turn.output_text for turn in turns} == {turns[0].output_text}
    items = list(client.responses.input_items.list(turns[0].id, order="asc"))
    assert items[1].id == first.output[0].id


def test_a_turn_after_reasoning_has_the_prompt_of_the_whole_conversation(http: httpx.Client) -> None:
    """Reasoning belongs to the message after it, whether the client sends both again or names the response."""
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "go on"},
    ]
    question = {"role": "user", "content": "a"}
    first = http.post(PATH, json={"input": items, "max_output_tokens": 1}).json()
    asked = ({"input": [*items, *first["output"], question]}, {"input": "a", "previous_response_id": first["id"]})
    again, named = (http.post(f"{PATH}/input_tokens", json=body).json()["input_tokens"] for body in asked)
    assert again == named


def test_calls_outputs_and_reasoning_are_listed_as_received(http: httpx.Client) -> None:
    items: list[dict[str, Any]] = [
        {"id": "m", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"id": "r", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"id": "c", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"id": "o", "type": "function_call_output", "call_id": "c1", "output": "3"},
    ]
    id = http.post("/v1/responses", json={"input": items}).json()["id"]
    listed = http.get(f"/v1/responses/{id}/input_items?order=asc").json()
    openai_document.check("ResponseItemList", listed)
    assert listed["data"] == [item | {"status": "completed"} for item in items]
