"""Background responses outlive connections and gateways, and any gateway answers for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from stack import NAME, Stack
from waiting import wait_until

from services.pool.pool import RequestPool
from services.settings.constants import Constants
from services.settings.settings import Settings
from services.settings.types import hash_of

# 20 ms per token, repeating the prompt
SLOW: dict[str, Any] = {"model": NAME, "input": "SLOWné 🐳", "extra_body": {"ignore_eos": True}}
LONG = SLOW | {"max_output_tokens": 380}  # all slots of the engine, and longer than any test


def client_of(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def other(stack: Stack, redis_url: str, tiny_folder: Path) -> Iterator[openai.OpenAI]:
    """Another gateway on the pool of `stack`; one engine serves both."""
    with (
        Stack(redis_url, "served", tiny_folder, stack.settings, engine=False) as second,
        client_of(second) as client,
    ):
        yield client


def ended(client: openai.OpenAI, id: str) -> bool:
    return client.responses.retrieve(id).status not in ("queued", "in_progress")


def test_create_returns_at_once_and_retrieve_shows_progress(client: openai.OpenAI, other: openai.OpenAI) -> None:
    made = client.responses.create(background=True, **LONG)
    assert (made.status, made.output, made.background) == ("queued", [], True)
    wait_until(lambda: other.responses.retrieve(made.id).output_text != "")
    part = other.responses.retrieve(made.id)
    assert part.status == "in_progress"
    assert part.usage is None
    client.responses.cancel(made.id)
    whole = other.responses.retrieve(made.id)
    assert client.responses.retrieve(made.id) == whole
    assert whole.output_text.startswith(part.output_text)


def test_a_stream_resumes_at_another_gateway(client: openai.OpenAI, other: openai.OpenAI) -> None:
    events = []
    with client.responses.create(background=True, stream=True, max_output_tokens=60, **SLOW) as stream:
        for event in stream:
            events.append(event)
            if len(events) == 10:
                break
    assert events[0].type == "response.created"
    assert events[0].response.status == "queued"
    id, last = events[0].response.id, events[-1].sequence_number
    rest = list(other.responses.retrieve(id, stream=True, starting_after=last))
    numbers = [e.sequence_number for e in (*events, *rest)]
    assert numbers == sorted(set(numbers))
    said = "".join(e.delta for e in (*events, *rest) if e.type == "response.output_text.delta")
    assert rest[-1].type == "response.incomplete"
    assert said == rest[-1].response.output_text
    assert rest[-1].response.usage is not None
    assert rest[-1].response.usage.output_tokens == 60


async def end_of(pool: RequestPool, request: str) -> None:
    """Wait for the end without following the response."""
    while True:
        group = await pool.group(request)
        if group is not None and group.ended:
            return
        await asyncio.sleep(0.05)


def test_a_background_response_outlives_its_gateway(redis_url: str, tiny_folder: Path) -> None:
    with Stack(redis_url, "graceful", tiny_folder, Settings(constants=Constants(grace=1.0))) as stack:
        with Stack(redis_url, "graceful", tiny_folder, stack.settings, engine=False) as gone, client_of(gone) as client:
            made = client.responses.create(background=True, max_output_tokens=100, **SLOW)
        stack.call(end_of(stack.pool, made.id))
        with client_of(stack) as client:
            whole = client.responses.retrieve(made.id)
    assert whole.status == "incomplete"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 100


def test_cancel(client: openai.OpenAI, other: openai.OpenAI) -> None:
    made = client.responses.create(background=True, **LONG)
    wait_until(lambda: client.responses.retrieve(made.id).output_text != "")
    with client.responses.retrieve(made.id, stream=True) as stream:
        cancelled = other.responses.cancel(made.id)
        events = list(stream)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text != ""
    assert client.responses.retrieve(made.id) == cancelled
    assert client.responses.cancel(made.id) == cancelled
    assert events[-1].type == "response.incomplete"
    assert events[-1].response == cancelled
    following = client.responses.create(model=NAME, input="a", previous_response_id=made.id)
    assert following.status == "completed"


def test_an_ended_response_is_not_cancelled(client: openai.OpenAI) -> None:
    made = client.responses.create(model=NAME, input="hi", background=True)
    wait_until(lambda: ended(client, made.id))
    assert client.responses.cancel(made.id).status == "completed"


def test_only_background_responses_can_be_cancelled(client: openai.OpenAI) -> None:
    made = client.responses.create(model=NAME, input="hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)


def test_delete(client: openai.OpenAI, other: openai.OpenAI) -> None:
    done = client.responses.create(model=NAME, input="hi")
    running = client.responses.create(background=True, **LONG)
    for made in (done, running):
        other.responses.delete(made.id)
        for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match=made.id):
                call(made.id)


def test_an_expired_response_is_not_found(redis_url: str, tiny_folder: Path) -> None:
    settings = Settings(constants=Constants(keep_ended=1.0))
    with Stack(redis_url, "short", tiny_folder, settings) as stack, client_of(stack) as client:
        made = client.responses.create(model=NAME, input="hi", background=True)

        def gone() -> bool:
            try:
                client.responses.retrieve(made.id)
            except openai.NotFoundError:
                return True
            return False

        wait_until(gone)


async def lose(pool: RequestPool, request: str) -> None:
    """Delete a waiting request, as if the pool's server had died before it wrote the request to disk."""
    script = """
      redis.call("HINCRBY", KEYS[4], "waiting", -1)
      return redis.call("DEL", KEYS[1], KEYS[2]) + redis.call("ZREM", KEYS[3], ARGV[1])
    """
    keys = [f"{pool._prefix}{name}" for name in (f"group:{request}", f"seq:{request}/0", "waiting:default", "meta")]
    assert await pool._server.command("EVAL", script, 4, *keys, f"{request}/0") == 3


def test_a_response_that_the_pool_loses_at_once_is_put_back(redis_url: str, tiny_folder: Path) -> None:
    with Stack(redis_url, "lossy", tiny_folder, Settings()) as stack, client_of(stack) as client:
        # occupies all slots of the engine, so the other one waits
        first = client.responses.create(background=True, **LONG)
        wait_until(lambda: stack.call(stack.pool.overview()).running == 1)
        made = client.responses.create(background=True, max_output_tokens=5, **SLOW)
        stack.call(lose(stack.pool, made.id))
        stack.call(stack.app.state.gateway.first.shards.all[0].reader.reread())
        wait_until(lambda: stack.call(stack.pool.group(made.id)) is not None)
        client.responses.cancel(first.id)
        wait_until(lambda: ended(client, made.id))
        assert client.responses.retrieve(made.id).status == "incomplete"


# --- owners --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(stack: Stack, redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    """A gateway on the same pool that requires keys."""
    settings = stack.settings.model_copy(update={"api_keys": {hash_of("key-a"): "a", hash_of("key-b"): "b"}})
    with Stack(redis_url, "served", tiny_folder, settings, engine=False) as gateway:
        yield gateway


def test_a_response_belongs_to_its_tenant(guarded: Stack) -> None:
    mine, yours = (client_of(guarded).with_options(api_key=key) for key in ("key-a", "key-b"))
    made = mine.responses.create(background=True, **LONG)
    for call in (yours.responses.retrieve, yours.responses.cancel, yours.responses.delete):
        with pytest.raises(openai.NotFoundError, match=made.id):
            call(made.id)
    with pytest.raises(openai.NotFoundError, match=made.id):
        yours.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.BadRequestError, match=made.id):
        yours.responses.create(model=NAME, input="a", previous_response_id=made.id)
    assert mine.responses.cancel(made.id).status == "cancelled"
    with pytest.raises(openai.AuthenticationError):
        mine.with_options(api_key="nobody's").responses.retrieve(made.id)
