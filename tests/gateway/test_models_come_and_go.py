"""Models that come and go while gateways run: each follows the list in the pool's server."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest
from batch_client import create, slow, until
from sse_client import RESUMABLE, chunks, first, read, rest
from stack import Stack
from tiny_text import make_folder
from waiting import wait_until

from gateway.gateway import ModelPools, load_models
from services.adapters.registry import Adapter, Registry
from services.errors import ModelError
from services.model_list import ModelList
from services.pool.shards import model_of
from services.settings.models import own_entry, tag_of
from services.settings.settings import Settings

OPERATOR = {"Authorization": "Bearer operator"}
TAG = tag_of("b", "default")
_numbers = itertools.count()
T = TypeVar("T")


class Source(ModelList):
    """The list, with models whose engines run in `stacks`, by their names in settings."""

    def __init__(self, settings: Settings, stacks: dict[str, Stack]) -> None:
        super().__init__(settings)
        self._stacks = stacks

    def load(self, settings: Settings) -> ModelPools:
        if settings.model not in {*self._stacks, *map(self.pin, self._stacks)}:
            raise ModelError(f"{settings.model} is not there")
        (made,) = self._stacks[settings.model.partition("@")[0]].models()
        name = settings.served_model_name[0]
        return ModelPools(replace(made.model, name=name), made.pools, settings)

    def pin(self, model: str) -> str:
        return f"{model}@1"


class Follower(Stack):
    """A gateway that follows the list."""

    def __init__(self, redis_url: str, folder: Path, settings: Settings, stacks: dict[str, Stack]) -> None:
        super().__init__(redis_url, "none", folder, settings, engine=False)
        self._stacks = stacks

    def source(self) -> Source:
        return Source(self.settings, self._stacks)

    def models(self) -> list[ModelPools]:
        return [self.source().load(each) for each in self.settings.each]


@pytest.fixture(scope="module")
def stacks(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stack]]:
    folders = [make_folder(tmp_path_factory.mktemp(name), backwards=name == "b") for name in "ab"]
    a, b = Settings(served_model_name="alpha"), Settings(served_model_name="beta")
    with Stack(redis_url, "list-a", folders[0], a) as first, Stack(redis_url, "list-b", folders[1], b) as other:
        yield {"a": first, "b": other}


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    own: dict[str, Any] = {"pool": f"p{next(_numbers)}", "files_dir": str(tmp_path), "operator_api_key": "operator"}
    return Settings(model="a", served_model_name="alpha", redis_url=redis_url, **own)


@pytest.fixture
def gateways(redis_url: str, settings: Settings, stacks: dict[str, Stack]) -> Iterator[list[httpx.Client]]:
    folder = stacks["a"]._folder
    with (
        Follower(redis_url, folder, settings, stacks) as one,
        Follower(redis_url, folder, settings, stacks) as two,
        httpx.Client(base_url=one.url, timeout=20) as first,
        httpx.Client(base_url=two.url, timeout=20) as other,
    ):
        for http in (first, other):
            wait_until(lambda http=http: http.get("/ready").is_success)
        yield [first, other]


def states(http: httpx.Client) -> dict[str, str]:
    return {card["id"]: card["status"] for card in http.get("/v1/models").json()["data"]}


def change(http: httpx.Client, how: str, **body: Any) -> httpx.Response:
    return http.post(f"/v1/{how}_model", json=body, headers=OPERATOR)


def complete(http: httpx.Client, model: str) -> httpx.Response:
    return http.post("/v1/completions", json={"model": model, "prompt": "hello", "max_tokens": 2})


def listed(stacks: dict[str, Stack], listing: ModelList, call: Callable[[ModelList], Awaitable[T]]) -> T:
    """What a call of the list gives, in the loop of a stack."""

    async def made() -> T:
        try:
            return await call(listing)
        finally:
            await listing.close()

    return stacks["a"].call(made())


def add(stacks: dict[str, Stack], settings: Settings, **entry: Any) -> None:
    own = own_entry(settings.of_server(), {"pool": settings.pool} | entry, Settings)
    listed(stacks, ModelList(settings), lambda listing: listing.add(own))


def message(response: httpx.Response) -> str:
    assert response.is_error, response.text
    text: str = response.json()["error"]["message"]
    return text


def test_a_model_is_added_and_leaves(
    gateways: list[httpx.Client], settings: Settings, stacks: dict[str, Stack]
) -> None:
    one, other = gateways
    assert complete(other, "beta").status_code == 404
    added = change(one, "load", model="b", settings={"served_model_name": "beta", "max-model-len": 64})
    assert added.json()["max_model_len"] == 64
    assert complete(other, "beta").status_code in (200, 503)  # it is known there, too, with or without figures
    for http in gateways:
        wait_until(lambda http=http: states(http) == {"alpha": "ready", "beta": "ready"})
        made = complete(http, "beta").json()
        assert (made["model"], model_of(made["id"])) == ("beta", tag_of("b", settings.pool))
    (event,) = first(one, "/v1/completions", {"model": "beta", "prompt": "SLOWabc ", "max_tokens": 20}, 1, **RESUMABLE)
    assert change(other, "unload", model="beta").json()["status"] == "leaving"
    wait_until(lambda: states(one) == {"alpha": "ready", "beta": "leaving"})
    assert message(complete(one, "beta")) == "The model 'beta' is being removed: it ends the requests that it has."
    assert rest(other, event.id or "")[-2].json()["choices"][0]["finish_reason"] == "length"
    (gone,) = [each.settings for each in listed(stacks, ModelList(settings), ModelList.read) if each.leaving]
    listed(stacks, ModelList(settings), lambda listing: listing.drop(gone))
    for http in gateways:
        wait_until(lambda http=http: states(http) == {"alpha": "ready"})
        assert complete(http, "beta").status_code == 404
    assert complete(one, "alpha").status_code == 200


def test_the_default_leaves(gateways: list[httpx.Client]) -> None:
    one, other = gateways
    assert message(change(one, "unload", model="alpha")).startswith("The model 'alpha' stays: it is the last model")
    change(one, "load", model="b", settings={"served_model_name": "beta"})
    assert change(one, "unload", model="alpha").is_success
    for http in (one, other):
        wait_until(lambda http=http: http.post("/v1/completions", json={"prompt": "a"}).json().get("model") == "beta")


def test_changes_that_are_refused(gateways: list[httpx.Client], stacks: dict[str, Stack]) -> None:
    http, _ = gateways
    assert http.post("/v1/load_model", json={"model": "b"}).status_code == 403
    assert message(change(http, "unload", model="gamma")).startswith("The model 'gamma' does not exist")
    for body, why in (
        ({"model": "b", "settings": {"engins": 2}}, "unknown setting 'engins'; did you mean engines"),
        ({"model": "b", "settings": {"port": 2}}, "an entry has settings of one model, not of the server"),
        ({"model": "b", "settings": {"engines": 0, "served_model_name": "x"}}, "greater than or equal to 1"),
        ({"model": "b", "settings": {"served_model_name": "alpha"}}, "two models have the name 'alpha'"),
    ):
        assert why in message(change(http, "load", **body))
    assert states(http) == {"alpha": "ready"}


def test_no_adapter_and_model_have_the_same_name(gateways: list[httpx.Client], stacks: dict[str, Stack]) -> None:
    http, _ = gateways
    named = Registry(9, {"delta": Adapter("delta", "digest", "/delta", 0.0)})
    assert stacks["a"].call(stacks["a"].pool.adapt(9, named.pack()))
    refused = change(http, "load", model="b", settings={"served_model_name": "delta"})
    assert "'delta' is an adapter of the model 'alpha'" in message(refused)
    change(http, "load", model="b", settings={"served_model_name": "beta"})
    for name, why in (("delta", "is an adapter of the model 'alpha'"), ("beta", "is a model's name")):
        body = {"lora_name": name, "lora_path": "delta", "model": "beta"}
        assert why in message(http.post("/v1/load_lora_adapter", json=body, headers=OPERATOR))


def test_without_a_key_of_the_operator_the_routes_are_off(stack: Stack, http: httpx.Client) -> None:
    assert "operator_api_key" in message(change(http, "load", model="b"))


def test_streams_and_keys_of_a_default_that_leaves(gateways: list[httpx.Client]) -> None:
    """A request that names no model goes on where it was, as does a repeated one that the leaving model has."""
    one, other = gateways
    change(one, "load", model="b", settings={"served_model_name": "beta"})
    body = {"prompt": "SLOWabc ", "max_tokens": 20}
    (event,) = first(one, "/v1/completions", body, 1, **RESUMABLE)
    key = {"Idempotency-Key": "k"}
    asked = {"model": "alpha", "prompt": "SLOWabc ", "max_tokens": 12}
    (keyed,) = first(one, "/v1/completions", asked, 1, **key)
    assert change(one, "unload", model="alpha").is_success
    wait_until(lambda: states(other)["alpha"] == "leaving")
    resumed = read(
        other.post("/v1/completions", json=body | {"stream": True}, headers={"Last-Event-ID": event.id or ""})
    )
    assert resumed[-2].json()["choices"][0]["finish_reason"] == "length"
    again = read(other.post("/v1/completions", json=asked | {"stream": True}, headers=key))
    assert (again[0].id or "").partition(":")[0] == (keyed.id or "").partition(":")[0] != ""
    assert message(complete(other, "alpha")).endswith("it ends the requests that it has.")


def test_a_model_that_is_added_again_has_its_new_settings(
    gateways: list[httpx.Client], settings: Settings, stacks: dict[str, Stack]
) -> None:
    """Also at a gateway that has not looked at the list in between."""
    one, other = gateways
    change(one, "load", model="b", settings={"served_model_name": "beta"})
    wait_until(lambda: "beta" in states(other))
    beta = listed(stacks, ModelList(settings), ModelList.read)[1].settings
    change(one, "unload", model="beta")

    async def replace_it(listing: ModelList) -> None:
        await listing.drop(beta)
        entry = {"model": "b@1", "pool": settings.pool, "served_model_name": "gamma"}
        await listing.add(Settings(models=["a", entry]).models[1])

    listed(stacks, ModelList(settings), replace_it)
    for http in gateways:
        wait_until(lambda http=http: states(http) == {"alpha": "ready", "gamma": "ready"})
        assert complete(http, "gamma").status_code == 200


def test_a_model_that_went_is_served_to_the_end_of_its_last_answer(
    gateways: list[httpx.Client], settings: Settings, stacks: dict[str, Stack]
) -> None:
    one, _ = gateways
    change(one, "load", model="b", settings={"served_model_name": "beta"})
    body = {"model": "beta", "prompt": "SLOWabc ", "max_tokens": 20, "stream": True}
    with one.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        change(one, "unload", model="beta")
        beta = listed(stacks, ModelList(settings), ModelList.read)[1].settings
        listed(stacks, ModelList(settings), lambda listing: listing.drop(beta))
        assert chunks(lines)[-1]["choices"][0]["finish_reason"] == "length"
    wait_until(lambda: states(one) == {"alpha": "ready"})


def test_a_batch_of_a_model_that_went_waits_for_a_server_with_it(
    gateways: list[httpx.Client], settings: Settings, stacks: dict[str, Stack]
) -> None:
    """Its lines are not given to a pool without engines."""
    one, other = gateways
    change(one, "load", model="b", settings={"served_model_name": "beta"})
    client = openai.OpenAI(base_url=f"{one.base_url}/v1", api_key="none")
    batch = create(client, slow(2000))
    until(client, batch.id, lambda each: bool(each.request_counts and each.request_counts.completed))
    change(one, "unload", model="alpha")
    listed(stacks, ModelList(settings), lambda listing: listing.drop(settings))
    for http in (one, other):
        wait_until(lambda http=http: states(http) == {"beta": "ready"})
    assert client.batches.retrieve(batch.id).status == "in_progress"


def test_an_added_model_that_cannot_be_served_leaves_the_others_alone(
    gateways: list[httpx.Client], settings: Settings, stacks: dict[str, Stack]
) -> None:
    """Its files are gone, or it has the name of another one since the configuration has changed."""
    one, _ = gateways
    add(stacks, settings, model="absent@1", served_model_name="away")
    add(stacks, settings, model="b", pool=f"{settings.pool}-2", served_model_name="alpha")
    add(stacks, settings, model="b", served_model_name="beta")
    wait_until(lambda: states(one) == {"alpha": "ready", "beta": "ready"})
    source = Follower(settings.redis_url.get_secret_value(), stacks["a"]._folder, settings, stacks).source()

    async def loaded(listing: ModelList) -> list[ModelPools]:
        return load_models(source, await listing.read())

    made = listed(stacks, source, loaded)
    assert [each.settings.served_model_name for each in made] == [("alpha",), ("beta",)]
    assert change(one, "unload", model="absent").json()["id"] == "absent"
    assert [each.leaving for each in listed(stacks, ModelList(settings), ModelList.read)] == [False, True, False, False]


async def test_the_list_outlives_the_server_and_belongs_to_a_configuration(settings: Settings) -> None:
    first, again = ModelList(settings), ModelList(settings.pinned(lambda name: f"{name}@2"))
    entry = Settings(models=["a", {"model": "b@1", "pool": settings.pool, "engines": 3}]).models[1]
    await first.add(entry)
    listed = await again.read()
    assert [(one.settings.model, one.settings.engines) for one in listed] == [("a@2", 1), ("b@1", 3)]
    await first.leave(settings)
    assert [one.leaving for one in await again.read()] == [True, False]
    await first.drop(settings)
    assert [one.settings.model for one in await again.read()] == ["b@1"]
    other = ModelList(Settings(model="c", pool=settings.pool, redis_url=settings.redis_url))
    assert [one.settings.model for one in await other.read()] == ["c"]
    for one in (first, again, other):
        await one.close()


async def test_what_comes_late_does_not_change_a_model_that_was_added_again(settings: Settings) -> None:
    listing = ModelList(settings)
    (entry,) = Settings(models=["a", {"model": "b", "pool": settings.pool}]).models[1:]
    b = settings.of_model(entry)
    await listing.add(entry)
    await listing.leave(b)
    await listing.drop(b)
    await listing.leave(b)  # by a gateway that does not know yet that it has gone
    await listing.add(entry)
    assert [one.leaving for one in await listing.read()] == [False, False]
    await listing.drop(b)  # by a scheduler that has seen it leave
    assert [one.settings.model for one in await listing.read()] == ["a", "b"]
    await listing.close()
