"""Sampling defaults of the model apply to fields that a request leaves out, in every API; the server says them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stack import WEIGHTS, Stack
from tiny_text import make_folder

from cli.status import kept_weights
from services.requests import SamplingParams
from services.settings.settings import Settings

CONFIG = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.05, "repetition_penalty": 1.25}
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
SAY = [{"role": "user", "content": "hello"}]
COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hello"},
    CHAT: {"messages": SAY},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": SAY, "max_tokens": 9},
}
LENGTHS = {COMPLETIONS: 16, CHAT: 33, RESPONSES: 33, MESSAGES: 9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("with-defaults"))
    (folder / "generation_config.json").write_text(json.dumps(CONFIG | {"max_new_tokens": 33, "do_sample": True}))
    return folder


@pytest.fixture(scope="module")
def stack(redis_url: str, folder: Path) -> Iterator[Stack]:
    with Stack(redis_url, "defaults", folder, Settings()) as stack:
        yield stack


def sampled(stack: Stack, http: httpx.Client, path: str, **fields: Any) -> SamplingParams:
    """How the engine is to sample the request."""
    response = http.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    return stack.engine.asked[-1].sampling


def of(sampling: SamplingParams) -> dict[str, float]:
    return {name: getattr(sampling, name) for name in CONFIG}


@pytest.mark.parametrize("path", BODIES)
def test_fields_that_a_request_leaves_out_are_the_models(stack: Stack, http: httpx.Client, path: str) -> None:
    made = sampled(stack, http, path)
    assert (of(made), made.max_new_tokens) == (CONFIG, LENGTHS[path])
    assert of(sampled(stack, http, path, top_k=None, temperature=0)) == CONFIG | {"temperature": 0}


@pytest.mark.parametrize("path", BODIES)
def test_the_fields_of_a_request_win(stack: Stack, http: httpx.Client, path: str) -> None:
    assert of(sampled(stack, http, path, **NEUTRAL)) == NEUTRAL
    assert sampled(stack, http, path, top_k=-1).top_k == 0
    length = "max_output_tokens" if path == RESPONSES else "max_tokens"
    assert sampled(stack, http, path, **{length: 40}).max_new_tokens == 40  # a default, and no limit


def test_the_server_says_them(http: httpx.Client, stack: Stack, client: Any) -> None:
    [card] = http.get("/v1/models").json()["data"]
    assert card["default_sampling_params"] == CONFIG | {"max_new_tokens": 33}
    assert client.models.retrieve("tiny").default_sampling_params["top_k"] == 7
    response = http.post(RESPONSES, json=BODIES[RESPONSES]).json()
    assert (response["temperature"], response["top_p"]) == (0.5, 0.9)
    response = http.post(RESPONSES, json=BODIES[RESPONSES] | {"temperature": 0, "top_p": 1}).json()
    assert (response["temperature"], response["top_p"]) == (0, 1)


def test_the_server_says_how_it_keeps_the_weights(http: httpx.Client, client: Any) -> None:
    assert client.models.retrieve("tiny").weights == WEIGHTS
    assert http.get("/v1/models").json()["data"][0]["weights"] == WEIGHTS
    assert kept_weights(http.get("/metrics").text) == [WEIGHTS]


def test_settings_go_before_the_model(redis_url: str, folder: Path) -> None:
    settings = Settings(generation_config="vllm", override_generation_config={"top_k": 3, "max_new_tokens": 8})
    with Stack(redis_url, "overridden", folder, settings) as stack, httpx.Client(base_url=stack.url) as http:
        made = sampled(stack, http, CHAT)
        assert (of(made), made.max_new_tokens) == (NEUTRAL | {"top_k": 3}, 8)
        assert http.get("/v1/models/tiny").json()["default_sampling_params"] == {"top_k": 3, "max_new_tokens": 8}


def test_without_a_file_nothing_changes(stack: Stack, redis_url: str, tiny_folder: Path) -> None:
    with Stack(redis_url, "no-file", tiny_folder, Settings()) as plain, httpx.Client(base_url=plain.url) as http:
        made = sampled(plain, http, RESPONSES)
        assert of(made) == NEUTRAL
        assert "default_sampling_params" not in http.get("/v1/models/tiny").json()
