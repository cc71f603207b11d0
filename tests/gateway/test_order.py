"""Classes and TTFT targets: they reach the pool, and the answer names the tier that served it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai_document
import pytest
from clients import post, show_an_engine
from stack import Stack
from test_bad_input import check_error
from waiting import wait_until

from services.messages import Exchange, Room
from services.settings.constants import Constants
from services.settings.settings import Settings

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi", "max_tokens": 2},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"input": "hi"},
}


@pytest.fixture(scope="module")
def ranked(redis_url: str, tiny_folder: Path) -> Iterator[httpx.Client]:
    settings = Settings(order="priority", tenant_limits={"default": {"earliest_class": -2}})
    with Stack(redis_url, "ranked", tiny_folder, settings) as stack, httpx.Client(base_url=stack.url) as client:
        yield client


def test_requests_are_claimed_by_class_and_target(redis_url: str, tiny_folder: Path) -> None:
    asked: list[dict[str, Any]] = [
        {"service_tier": "flex"},
        {"priority": 8},
        {},
        {"ttft_target": 0.5},
        {"service_tier": "priority"},
        {"priority": -1, "ttft_target": 3, "service_tier": "auto"},
    ]
    settings = Settings(order="priority", constants=Constants(ageing=3600.0, ttft_target=20.0))
    with Stack(redis_url, f"order-{time.monotonic_ns()}", tiny_folder, settings, engine=False) as stack:
        stack.call(show_an_engine(stack))
        connections = []
        for fields in asked:
            connections.append(post(stack, {"prompt": "hello"} | fields))
            wait_until(lambda: stack.call(stack.pool.overview()).waiting == len(connections))
        grant = stack.call(stack.pool.acquire("another", "test", 60))
        claims = stack.call(stack.pool.exchange(Exchange("another", grant.epoch, 1, [], Room(9, 99, 16)))).claims
        for connection in connections:
            connection.close()
    assert [(claim.priority, claim.ttft) for claim in claims] == [
        (-1, 3),
        (-1, 20),
        (0, 0.5),
        (0, 20),
        (1, 20),
        (8, 20),
    ]


TIERS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"priority": 1}, None),
    ({"service_tier": None}, None),
    ({"service_tier": "auto"}, "default"),
    ({"service_tier": "auto", "priority": 5}, "flex"),
    ({"service_tier": "default", "priority": 0}, "default"),
    ({"service_tier": "flex"}, "flex"),
    ({"service_tier": "priority"}, "priority"),
    ({"service_tier": "fast"}, "priority"),
]


@pytest.mark.parametrize(("fields", "tier"), TIERS, ids=map(str, TIERS))
def test_the_answer_names_the_tier_that_served_it(ranked: httpx.Client, fields: dict[str, Any], tier: str) -> None:
    chat = ranked.post(CHAT, json=BODIES[CHAT] | fields).json()
    openai_document.check("CreateChatCompletionResponse", chat)
    stream = ranked.post(CHAT, json=BODIES[CHAT] | fields | {"stream": True}).text
    assert chat.get("service_tier") == tier
    assert stream.count('"service_tier":') == (stream.count("data: {") if tier else 0)
    assert f'"service_tier":"{tier}"' in stream or tier is None
    assert "service_tier" not in ranked.post(COMPLETIONS, json=BODIES[COMPLETIONS] | fields).json()


@pytest.mark.parametrize(("fields", "tier"), [*TIERS[3:], ({}, "default"), ({"priority": -2}, "priority")], ids=str)
def test_a_response_always_names_the_tier(ranked: httpx.Client, fields: dict[str, Any], tier: str) -> None:
    made = ranked.post(RESPONSES, json=BODIES[RESPONSES] | fields).json()
    openai_document.check("Response", made)
    assert made["service_tier"] == tier
    assert ranked.get(f"{RESPONSES}/{made['id']}").json() == made


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_by_arrival_there_is_one_tier(http: httpx.Client, path: str) -> None:
    assert http.post(path, json=BODIES[path] | {"service_tier": "priority"}).json()["service_tier"] == "default"


@pytest.mark.parametrize("path", BODIES)
def test_a_class_before_the_earliest_is_refused(ranked: httpx.Client, path: str) -> None:
    error = check_error(ranked.post(path, json=BODIES[path] | {"priority": -3}), 400, "-3")
    assert error["param"] == "priority"
    assert "-2" in error["message"]
    assert ranked.post(path, json=BODIES[path] | {"priority": -2}).status_code == 200


def test_an_error_names_the_tier_that_set_the_class(redis_url: str, tiny_folder: Path) -> None:
    settings = Settings(order="priority", tenant_limits={"default": {"earliest_class": 0}})
    with Stack(redis_url, "plain-tiers", tiny_folder, settings) as stack, httpx.Client(base_url=stack.url) as client:
        error = check_error(client.post(CHAT, json=BODIES[CHAT] | {"service_tier": "priority"}), 400, "-1")
        assert error["param"] == "service_tier"


def test_earliest_class_of_a_tenant(redis_url: str, tiny_folder: Path) -> None:
    keys = {"ka": "a", "kb": "b"}
    settings = Settings(order="priority", api_keys=keys, tenant_limits={"b": {"earliest_class": -4}})
    with Stack(redis_url, "keyed-classes", tiny_folder, settings) as stack, httpx.Client(base_url=stack.url) as client:
        body = BODIES[COMPLETIONS] | {"priority": -4}
        check_error(client.post(COMPLETIONS, json=body, headers={"x-api-key": "ka"}), 400, "-4")
        assert client.post(COMPLETIONS, json=body, headers={"x-api-key": "kb"}).status_code == 200


@pytest.mark.parametrize("fields", [{"priority": 1}, {"ttft_target": 5}, {"service_tier": "flex"}], ids=str)
def test_another_class_is_a_different_request(http: httpx.Client, fields: dict[str, Any]) -> None:
    headers = {"Idempotency-Key": f"class-{time.monotonic_ns()}"}
    body = BODIES[COMPLETIONS]
    assert http.post(COMPLETIONS, json=body, headers=headers).status_code == 200
    error = check_error(http.post(COMPLETIONS, json=body | fields, headers=headers), 400, "Idempotency-Key")
    assert error["code"] == "idempotency_key_reused"
    assert http.post(COMPLETIONS, json=body, headers=headers).status_code == 200
