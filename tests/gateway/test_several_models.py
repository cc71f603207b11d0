"""Two models behind one gateway, each with a pool, an engine, a tokenizer and a context length of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from batch_client import create, ended, entries, jsonl, line
from prometheus_client.parser import text_string_to_metric_families
from sse_client import DONE, RESUMABLE, Event, first, rest
from stack import Stack
from tiny_text import make_folder
from waiting import wait_until

from cli import status
from gateway.gateway import ModelPools
from services.pool.shards import model_of, shard_of
from services.settings.models import tag_of
from services.settings.settings import Settings

A, B = "alpha", "beta"
TAG = tag_of("b", "default")  # of the second model
MODELS = [
    {"model": "a", "served_model_name": [A, "first"]},
    {"model": "b", "served_model_name": B, "override_generation_config": {"max_new_tokens": 7}},
]
_numbers = itertools.count()


class Both(Stack):
    """A gateway that serves the models of other stacks."""

    def __init__(self, redis_url: str, folder: Path, settings: Settings, stacks: list[Stack]) -> None:
        super().__init__(redis_url, "none", folder, settings, engine=False)
        self._stacks = stacks

    def models(self) -> list[ModelPools]:
        return [model for stack in self._stacks for model in stack.models()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [
        make_folder(tmp_path_factory.mktemp("alpha")),
        make_folder(tmp_path_factory.mktemp("beta"), backwards=True, length=128),
    ]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(models=MODELS, files_dir=str(tmp_path_factory.mktemp("files")))


@pytest.fixture(scope="module")
def engines(redis_url: str, folders: list[Path], settings: Settings) -> Iterator[list[Stack]]:
    """A server of each model alone, with its engine, and without the batches of the others."""
    a, b = (each.model_copy(update={"files_dir": str(folders[0] / "files")}) for each in settings.each)
    # the second model has two shards
    shards = f"0={redis_url} 2={redis_url}"
    with Stack(redis_url, "models-a", folders[0], a) as first, Stack(shards, "models-b", folders[1], b) as other:
        yield [first, other]


@pytest.fixture(scope="module")
def stack(redis_url: str, folders: list[Path], settings: Settings, engines: list[Stack]) -> Iterator[Stack]:
    with Both(redis_url, folders[0], settings, engines) as stack:
        wait_until(lambda: httpx.get(f"{stack.url}/ready").text == "")
        yield stack


@pytest.fixture(scope="module")
def other(redis_url: str, folders: list[Path], settings: Settings, engines: list[Stack]) -> Iterator[httpx.Client]:
    """A second gateway, whose default is the other model."""
    with Both(redis_url, folders[0], settings, engines[::-1]) as stack:
        http = stack.http
        wait_until(lambda: http.get("/ready").text == "")
        yield http


def completion(http: httpx.Client, **fields: Any) -> Any:
    response = http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 5} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response: httpx.Response) -> Any:
    assert response.status_code >= 400, response.text
    return response.json()["error"]


def text_of(events: list[Event]) -> str:
    return "".join(event.json()["choices"][0]["text"] for event in events if event != DONE)


def test_the_model_of_a_request_is_the_one_that_it_names(engines: list[Stack], http: httpx.Client) -> None:
    asked = [len(engine.engine.asked) for engine in engines]
    for name, tag, served in ((None, "", A), (A, "", A), ("first", "", A), (B, TAG, B)):
        made = completion(http, prompt=f"hello {next(_numbers)}", **{"model": name} if name else {})
        assert (made["model"], model_of(made["id"])) == (served, tag)
        assert made["choices"][0]["text"].startswith("hello"[:5])
    assert len(engines[0].engine.asked) - asked[0] == 3


def test_an_unknown_model_is_not_found(http: httpx.Client) -> None:
    error = error_of(http.post("/v1/completions", json={"prompt": "a", "model": "gamma"}))
    assert error["code"] == "model_not_found"
    assert error["message"] == "The model 'gamma' does not exist; this server serves 'alpha' or 'first' or 'beta'."
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "model": "gamma"}
    assert http.post("/v1/messages", json=body | {"max_tokens": 1}).status_code == 404
    for path in ("/v1/chat/completions", "/v1/messages/count_tokens"):
        assert http.post(path, json=body).status_code == 404
    assert http.post("/v1/responses", json={"input": "a", "model": "gamma"}).status_code == 404
    assert http.post("/tokenize", json={"prompt": "a", "model": "gamma"}).status_code == 404
    assert http.get("/v1/models/gamma").status_code == 404


def test_each_model_has_its_tokenizer_its_defaults_and_its_length(http: httpx.Client) -> None:
    tokens = [http.post("/tokenize", json={"prompt": "a", "model": name}).json()["tokens"] for name in (A, B)]
    assert tokens[0] != tokens[1]
    assert http.post("/detokenize", json={"tokens": tokens[1], "model": B}).json()["prompt"] == "a"
    chat = {"messages": [{"role": "user", "content": "SLOW" * 4}]}
    used = [http.post("/v1/chat/completions", json=chat | {"model": B}).json()["usage"]["completion_tokens"]]
    assert used == [7]
    long = {"prompt": "x" * 200, "max_tokens": 4}
    assert completion(http, **long)["usage"]["prompt_tokens"] == 200
    assert (
        "maximum context length is 128" in error_of(http.post("/v1/completions", json=long | {"model": B}))["message"]
    )


def test_all_models_are_listed(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert [(card["id"], card["max_model_len"]) for card in listed["data"]] == [(A, 512), ("first", 512), (B, 128)]
    assert (listed["first_id"], listed["last_id"]) == (A, B)
    assert http.get(f"/v1/models/{B}").json()["max_model_len"] == 128


@pytest.mark.parametrize("name", [A, B])
def test_a_stream_is_resumed_and_cancelled_at_another_gateway(
    http: httpx.Client, other: httpx.Client, name: str
) -> None:
    body = {"model": name, "prompt": "SLOWabc ", "max_tokens": 12}
    begun = first(http, "/v1/completions", body, 3, **RESUMABLE)
    assert begun[-1].id
    assert text_of([*begun, *rest(other, begun[-1].id)]) == "SLOWabc SLOW"
    (event,) = first(http, "/v1/completions", body | {"max_tokens": 80}, 1, **RESUMABLE)
    assert event.id
    assert other.delete(f"/v1/streams/{event.id.partition(':')[0]}").status_code == 200
    assert rest(other, event.id)[-1].json()["error"]["code"] == "request_cancelled"


def test_an_id_of_no_model_is_not_found(http: httpx.Client) -> None:
    for id in (f"cmpl-{'0' * 32}-m777777", f"cmpl-{'0' * 32}-m{TAG}-1"):
        assert error_of(http.get(f"/v1/streams/{id}"))["code"] == "request_not_found"
        assert error_of(http.delete(f"/v1/streams/{id}"))["code"] == "request_not_found"
    assert error_of(http.get(f"/v1/responses/resp_{'0' * 32}-m777777"))["code"] == "request_not_found"


def test_an_id_is_found_where_the_models_have_another_order(
    redis_url: str, folders: list[Path], engines: list[Stack], http: httpx.Client
) -> None:
    """The model that was first is now the second, and its ids had no tag."""
    ids = [completion(http, model=name)["id"] for name in (A, B)]
    reordered = Settings(models=MODELS[::-1]).each[::-1]
    for stack, settings in zip(engines, reordered, strict=True):
        stack.settings = settings
    with Both(redis_url, folders[0], reordered[1], engines[::-1]) as stack:
        found = [httpx.get(f"{stack.url}/v1/streams/{id}").text for id in ids]
    for stack, settings in zip(engines, Settings(models=MODELS).each, strict=True):
        stack.settings = settings
    assert [text.count(f'"model":"{name}"') > 0 for text, name in zip(found, (A, B), strict=True)] == [True, True]


def test_a_position_in_a_stream_of_another_model_is_refused(http: httpx.Client) -> None:
    (event,) = first(http, "/v1/completions", {"model": B, "prompt": "SLOWabc ", "max_tokens": 12}, 1, **RESUMABLE)
    body = {"model": A, "prompt": "SLOWabc ", "max_tokens": 12, "stream": True}
    refused = http.post("/v1/completions", json=body, headers={"Last-Event-ID": event.id or ""})
    assert error_of(refused)["code"] == "request_not_found"


def test_one_idempotency_key_at_two_models_is_two_requests(http: httpx.Client, other: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"key-{next(_numbers)}"}
    ids = []
    for gateway in (http, other):
        for name in (A, B):
            made = gateway.post("/v1/completions", json={"prompt": "a", "model": name}, headers=headers)
            ids.append(made.json()["id"])
    assert ids[:2] == ids[2:]
    assert list(map(model_of, ids)) == ["", TAG, "", TAG]


def test_a_conversation_goes_on_with_another_model(http: httpx.Client, other: httpx.Client) -> None:
    made = http.post("/v1/responses", json={"model": B, "input": "hello", "max_output_tokens": 3}).json()
    assert other.get(f"/v1/responses/{made['id']}").json()["output"] == made["output"]
    body = {"model": A, "input": "next", "previous_response_id": made["id"], "max_output_tokens": 3}
    after = http.post("/v1/responses", json=body).json()
    items = other.get(f"/v1/responses/{after['id']}/input_items").json()["data"]
    assert made["output"][0]["id"] in [item["id"] for item in items]
    assert [item["content"][0]["text"] for item in items if item["role"] == "assistant"] == ["hello"]
    assert [model_of(each["id"]) for each in (made, after)] == [TAG, ""]
    assert http.delete(f"/v1/responses/{made['id']}").json()["deleted"]
    running = {"model": B, "input": "SLOWabc", "max_output_tokens": 90, "background": True}
    id = http.post("/v1/responses", json=running).json()["id"]
    assert other.post(f"/v1/responses/{id}/cancel").json()["status"] == "cancelled"


def test_the_lines_of_a_batch_may_name_any_model(client: openai.OpenAI) -> None:
    body = {"prompt": "hello", "max_tokens": 3}
    lines = [line("none", body), *(line(name, body | {"model": name}) for name in (A, B, "gamma"))]
    batch = ended(client, create(client, jsonl(lines)))
    wrong = entries(client, batch.error_file_id)
    assert [(entry["custom_id"], entry["response"]["status_code"]) for entry in wrong] == [("gamma", 404)], wrong
    answered = entries(client, batch.output_file_id)
    served = {entry["custom_id"]: entry["response"]["body"]["model"] for entry in answered}
    assert served == {"none": A, A: A, B: B}


def test_each_model_has_its_series(http: httpx.Client) -> None:
    completion(http, model=B)
    families = text_string_to_metric_families(http.get("/metrics").text)
    found = [(s.name, s.labels) for family in families for s in family.samples]
    for name in ("vllm:num_requests_running", "orca:engines", "vllm:time_to_first_token_seconds_count"):
        assert {labels["model_name"] for named, labels in found if named == name} == {A, B}
    gateways = [labels for named, labels in found if named == "orca:gateway_memory_bytes"]
    assert {labels["model_name"] for labels in gateways} == {A}
    assert len({labels["gateway"] for labels in gateways}) == len(gateways)


def test_status_and_the_page_have_a_row_for_each_model(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    status.run(["--url", stack.url])
    lines = capsys.readouterr().out.splitlines()
    assert "models alpha, beta" in lines[0]
    rows = [line.split()[2:] for line in lines if line.startswith("gateways")]
    assert rows == [[A]]
    assert [line.split(": ")[1] for line in lines if line.startswith("weights")] == [A, B]
    with httpx.stream("GET", stack.url + "/ui/feed") as feed:
        state = next(text for text in feed.iter_lines() if text.startswith('data: {"at"'))
    assert f'"models":[{{"name":"{A}"' in state


def test_a_model_without_an_engine_is_named(redis_url: str, folders: list[Path], settings: Settings) -> None:
    a, b = settings.each
    lone = [Stack(redis_url, f"lone-{name}", folders[0], one, engine=False) for name, one in ((A, a), (B, b))]
    with Both(redis_url, folders[0], settings, lone) as stack:
        wait_until(lambda: "No engine is ready" in httpx.get(stack.url + "/ready").text)
        assert httpx.get(stack.url + "/ready").status_code == 503


def test_a_model_with_shards(http: httpx.Client) -> None:
    ids = [completion(http, model=B, prompt=f"hello {n}")["id"] for n in range(12)]
    assert {(model_of(id), shard_of(id)) for id in ids} == {(TAG, 0), (TAG, 2)}
    assert {id.partition(f"-m{TAG}")[2] for id in ids} == {"", "-2"}
