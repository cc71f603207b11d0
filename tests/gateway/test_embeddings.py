"""`/v1/embeddings` with the real engine of a tiny model, through the official client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import openai
import openai_document
import pytest
from batch_client import create, ended, entries, jsonl
from stack import NAME
from vector_models import expected_vectors, make_embedder
from vector_stack import VectorStack

from gateway.answer.plan import AnswerKind
from gateway.errors import ApiError
from gateway.executor import FairExecutor
from gateway.http.headers import Caller
from gateway.schemas.vectors import EmbeddingRequest
from gateway.validation import Validator
from services.messages import EngineFigures
from services.settings.settings import Settings
from services.text.tokenizer import EncodedText

TEXTS = ["hello there", "a", "many more words than the others have"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_embedder(tmp_path_factory.mktemp("embedder"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [16, 32, 64]}))
    prompts = {"prompts": {"query": "find: ", "plain": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100}))
    return folder


@pytest.fixture(scope="module")
def vectors(redis_url: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VectorStack]:
    with VectorStack(redis_url, folder, files_dir=str(tmp_path_factory.mktemp("files"))) as stack:
        yield stack


@pytest.fixture(scope="module")
def embedder(vectors: VectorStack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=vectors.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def posts(vectors: VectorStack) -> httpx.Client:
    return vectors.http


def embed(client: openai.OpenAI, input: Any, **more: Any) -> list[np.ndarray[Any, Any]]:
    answer = client.embeddings.create(model=NAME, input=input, encoding_format="float", **more)
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return [np.array(one.embedding, np.float32) for one in answer.data]


def test_the_formats_of_the_input_and_of_the_vectors(
    embedder: openai.OpenAI, vectors: VectorStack, folder: Path
) -> None:
    ids = vectors.tokenizer.encode_batch(TEXTS)
    wanted = expected_vectors(folder, ids)
    found = embed(embedder, TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for input in (ids, TEXTS[0], ids[0]):
        some = embed(embedder, input)
        assert [one.tobytes() for one in some] == [one.tobytes() for one in found[: len(some)]]
    answer = embedder.embeddings.with_raw_response.create(model=NAME, input=TEXTS, encoding_format="base64", user="u")
    body = json.loads(answer.text)
    assert [base64.b64decode(one["embedding"]) for one in body["data"]] == [one.tobytes() for one in found]
    count = sum(map(len, ids))
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
    assert (body["object"], body["model"], body["id"][:5]) == ("list", NAME, "embd-")


def test_dimensions_of_a_model_that_is_trained_for_them(embedder: openai.OpenAI) -> None:
    (whole,) = embed(embedder, "hello")
    (short,) = embed(embedder, "hello", dimensions=16)
    np.testing.assert_allclose(short, whole[:16] / np.linalg.norm(whole[:16]), rtol=1e-6)
    assert (embed(embedder, "hello", dimensions=64)[0] == whole).all()
    with pytest.raises(openai.BadRequestError, match=r"one of 16, 32, 64.*got 17") as refused:
        embed(embedder, "hello", dimensions=17)
    assert refused.value.param == "dimensions"


def test_prompts_of_the_model(embedder: openai.OpenAI) -> None:
    (asked,) = embed(embedder, "hello", extra_body={"prompt_name": "query"})
    assert (asked == embed(embedder, "find: hello")[0]).all()
    with pytest.raises(openai.BadRequestError, match="'query', 'plain'"):
        embed(embedder, "hello", extra_body={"prompt_name": "other"})


def test_a_text_that_is_too_long(embedder: openai.OpenAI, vectors: VectorStack) -> None:
    text = "word " * 120
    count = len(vectors.tokenizer.encode(text))
    for input in (text, ["short", text], vectors.tokenizer.encode(text)):
        with pytest.raises(openai.BadRequestError, match=f"is 100 tokens.* {count};") as refused:
            embed(embedder, input)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError, match=r"has at least \d+; shorten"):
        embed(embedder, "word " * 15_000)
    ids = vectors.tokenizer.encode(text)
    for keep, left in ((-1, 100), (7, 7)):
        (cut,) = embed(embedder, text, extra_body={"truncate_prompt_tokens": keep})
        assert (cut == embed(embedder, ids[:left])[0]).all()
        (cut,) = embed(embedder, ids, extra_body={"truncate_prompt_tokens": keep})
        assert (cut == embed(embedder, ids[:left])[0]).all()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_text_of_an_embedding_model_is_refused(posts: httpx.Client, path: str, body: dict[str, Any]) -> None:
    refused = posts.post(path, json={"model": NAME, **body})
    assert refused.status_code == 400
    assert "is an embedding model, it generates no text; use /v1/embeddings" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/v1/rerank"])
def test_vectors_of_a_model_that_generates_are_refused(http: httpx.Client, path: str) -> None:
    texts = {"input": "a"} if "emb" in path else {"text_1": "a", "text_2": "b"} if "score" in path else {}
    refused = http.post(path, json={"model": NAME, **(texts or {"query": "a", "documents": ["b"]})})
    assert refused.status_code == 400
    assert "generates text, it makes no vectors" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [{"text": "a"}]}, "input"),
        ({"input": [9999]}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "temperature": 1}, "temperature"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": ["a"] * 2049}, "input"),
        ({}, "input"),
    ],
)
def test_wrong_fields_are_named(posts: httpx.Client, fields: dict[str, Any], param: str) -> None:
    refused = posts.post("/v1/embeddings", json={"model": NAME, **fields})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param


def test_a_token_array_may_be_longer_than_other_lists(posts: httpx.Client) -> None:
    refused = posts.post("/v1/embeddings", json={"input": [5] * 5000})
    assert "5000" in refused.json()["error"]["message"]
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_a_request_with_a_key_is_answered_from_the_pool(embedder: openai.OpenAI, vectors: VectorStack) -> None:
    header = {"Idempotency-Key": "one"}
    first = embedder.embeddings.create(model=NAME, input=TEXTS, extra_headers=header)
    again = embedder.embeddings.create(model=NAME, input=TEXTS, extra_headers=header)
    assert first == again
    with pytest.raises(openai.BadRequestError, match="another request"):
        embedder.embeddings.create(model=NAME, input="other", extra_headers=header)


def test_a_batch_of_embeddings(embedder: openai.OpenAI) -> None:
    url = "/v1/embeddings"
    lines = [
        {"custom_id": f"line {i}", "method": "POST", "url": url, "body": {"model": NAME, "input": [text, "x"]}}
        for i, text in enumerate([*TEXTS, "word " * 300])
    ]
    batch = ended(embedder, create(embedder, jsonl(lines), endpoint=url))
    (failed,) = entries(embedder, batch.error_file_id)
    assert failed["response"]["body"]["error"]["code"] == "context_length_exceeded"
    for text, entry in zip(TEXTS, entries(embedder, batch.output_file_id), strict=True):
        found = [np.array(one["embedding"], np.float32) for one in entry["response"]["body"]["data"]]
        assert all((one == other).all() for one, other in zip(found, embed(embedder, [text, "x"]), strict=True))


def test_vectors_are_refused_while_no_engine_knows_them(vectors: VectorStack) -> None:
    async def known() -> EngineFigures:
        return replace(vectors.figures, features=("cache_salt",))

    model = vectors._served()
    checker = Validator("gateway", model, Settings(), FairExecutor(), known)
    fields = EmbeddingRequest.model_validate({"input": "a"})
    texts = [EncodedText([1, 2])]
    figures = asyncio.run(known())
    with pytest.raises(ApiError, match=r"'vector'.*engines that run now"):
        checker.vectors(AnswerKind.EMBEDDING, fields, texts, "input", figures, Caller("tenant"), b"")


def test_scores_are_cosines_and_ranks_follow_them(posts: httpx.Client, embedder: openai.OpenAI) -> None:
    query, documents = embed(embedder, ["query text", *TEXTS])[0], embed(embedder, TEXTS)
    wanted = [float(query @ one) for one in documents]
    scores = posts.post("/v1/score", json={"text_1": "query text", "text_2": TEXTS}).json()
    assert [one["index"] for one in scores["data"]] == [0, 1, 2]
    np.testing.assert_allclose([one["score"] for one in scores["data"]], wanted, atol=1e-6)
    assert scores["usage"]["prompt_tokens"] > 0
    paired = posts.post("/score", json={"text_1": TEXTS, "text_2": TEXTS[::-1]}).json()["data"]
    np.testing.assert_allclose(paired[1]["score"], 1.0, atol=1e-6)
    refused = posts.post("/v1/score", json={"text_1": TEXTS[:2], "text_2": TEXTS})
    assert refused.json()["error"]["param"] == "text_1"
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        body = {"model": NAME, "query": "query text", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]], "top_n": 2}
        ranking = posts.post(path, json=body).json()
        asked = embed(embedder, "find: query text")[0]
        best = sorted(range(3), key=lambda i: -float(asked @ documents[i]))[:2]
        assert [one["index"] for one in ranking["results"]] == best
        assert [one["document"]["text"] for one in ranking["results"]] == [TEXTS[i] for i in best]
    bare = posts.post("/v1/rerank", json={**body, "return_documents": False}).json()["results"]
    assert all(one.keys() == {"index", "relevance_score"} for one in bare)


def test_answers_are_as_both_documents_say(posts: httpx.Client) -> None:
    document = posts.get("/openapi.json").json()
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"input": TEXTS}),
        ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
        ("/v1/score", {"text_1": "a", "text_2": TEXTS}),
        ("/v1/rerank", {"query": "a", "documents": TEXTS}),
    ]
    for path, body in bodies:
        content = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
        root = {**content["schema"], "components": document["components"]}
        answer = posts.post(path, json=body).json()
        jsonschema.Draft202012Validator(root).validate(answer)
        if path == "/v1/embeddings" and "encoding_format" not in body:
            openai_document.check("CreateEmbeddingResponse", answer)
