"""Two pools on two real servers behind gateways that serve both."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from batch_client import create, ended, entries, jsonl, line
from clients import show_an_engine
from prometheus_client.parser import text_string_to_metric_families
from sse_client import DONE, RESUMABLE, Event, completion_text, first, rest
from stack import NAME, Server, Stack
from waiting import wait_until

from cli import status
from services.pool.shards import ShardState, Slots, shard_of, slot_of
from services.settings.constants import Constants
from services.settings.settings import Settings

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 3}
SLOW: dict[str, Any] = {"prompt": "SLOWabc ", "max_tokens": 80}
BACKGROUND = {"model": NAME, "input": "hi", "max_output_tokens": 3, "background": True}
BOTH = Slots({0: ShardState.SERVING, 1: ShardState.SERVING})
_numbers = itertools.count()


def key_of(shard: int) -> str:
    """A new idempotency key whose slot belongs to this one of two shards."""
    keys = (f"key-{number}" for number in _numbers)
    return next(key for key in keys if BOTH.owner(slot_of("default", key)) == shard)


def completion(http: httpx.Client, body: dict[str, Any] = BODY, key: str | None = None) -> str:
    """The id of a request that is answered."""
    response = http.post("/v1/completions", json=body, headers={"Idempotency-Key": key} if key else {})
    assert response.status_code == 200, response.text
    id: str = response.json()["id"]
    return id


def text_of(events: list[Event]) -> str:
    """The text of these events of a completion."""
    return "".join(event.json()["choices"][0]["text"] for event in events if event != DONE)


def error_of(response: httpx.Response) -> str:
    assert response.status_code >= 400, response.text
    code: str = response.json()["error"]["code"]
    return code


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with ExitStack() as exits:
        yield [exits.enter_context(Server(tmp_path_factory.mktemp(f"shard-{number}"))) for number in (0, 1)]


@pytest.fixture(scope="module")
def urls(servers: list[Server]) -> str:
    return " ".join(f"{number}={server.url}" for number, server in enumerate(servers))


@pytest.fixture(scope="module")
def stack(urls: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A gateway on both shards, with an engine in each."""
    settings = Settings(files_dir=str(tmp_path_factory.mktemp("files")), constants=Constants(lines_in_flight=16))
    with Stack(urls, "sharded", tiny_folder, settings) as stack:
        wait_until(lambda: ready_engines(stack) == 2)
        yield stack


def ready_engines(stack: Stack) -> float:
    if (page := httpx.get(stack.url + "/metrics")).status_code != 200:
        return 0
    return sum(samples(page.text).get(("orca:engines", shard), 0) for shard in ("0", "1"))


def samples(page: str) -> dict[tuple[str, str | None], float]:
    """The last sample of each name and shard."""
    families = text_string_to_metric_families(page)
    return {(s.name, s.labels.get("shard")): s.value for family in families for s in family.samples}


def test_requests_without_a_key_go_to_the_shard_with_the_least_load(stack: Stack, http: httpx.Client) -> None:
    spread = Counter(shard_of(completion(http)) for _ in range(16))
    assert min(spread[0], spread[1]) >= 4


def test_a_shard_without_an_engine_gets_none(urls: str, tiny_folder: Path) -> None:
    with Stack(urls, "lame", tiny_folder, Settings(), engine=False) as stack:
        http = stack.http
        stack.pool = stack.pools[1]
        stack.call(show_an_engine(stack, ready=1))
        wait_until(lambda: http.get("/ready").text == "shard 0: No engine is ready.")
        made = [http.post("/v1/responses", json=BACKGROUND).json()["id"] for _ in range(6)]
        assert {shard_of(id) for id in made} == {1}


def test_a_key_leads_to_its_first_request_at_every_gateway(http: httpx.Client, other: httpx.Client) -> None:
    for shard in (0, 1):
        key = key_of(shard)
        id = completion(http, key=key)
        assert shard_of(id) == shard
        assert completion(other, key=key) == id
        reused = other.post("/v1/completions", json=BODY | {"max_tokens": 2}, headers={"Idempotency-Key": key})
        assert error_of(reused) == "idempotency_key_reused"


@pytest.mark.parametrize("shard", [0, 1])
def test_a_stream_is_resumed_at_another_gateway(http: httpx.Client, other: httpx.Client, shard: int) -> None:
    """By its id alone, and by a POST with its key."""
    body, key = {"prompt": "SLOWabc ", "max_tokens": 12}, key_of(shard)
    begun = first(http, "/v1/completions", body, 3, Idempotency_Key=key)
    last = begun[-1].id
    assert last is not None
    assert shard_of(last.partition(":")[0]) == shard
    following = rest(other, last)
    assert following[-1] == DONE
    assert text_of([*begun, *following]) == "SLOWabc SLOW"
    headers = {"Last-Event-ID": last, "Idempotency-Key": key}
    again = other.post("/v1/completions", json=body | {"stream": True}, headers=headers)
    assert completion_text(again.text.splitlines()) == text_of(following)


def test_an_id_of_no_shard_is_not_found(http: httpx.Client) -> None:
    assert error_of(http.get(f"/v1/streams/cmpl-{'0' * 32}-7")) == "request_not_found"
    assert error_of(http.delete(f"/v1/streams/cmpl-{'0' * 32}-7")) == "request_not_found"
    assert error_of(http.get(f"/v1/responses/resp_{'0' * 32}-7")) == "request_not_found"


def test_a_stream_is_cancelled_by_its_id(http: httpx.Client, other: httpx.Client) -> None:
    (begun,) = first(http, "/v1/completions", SLOW, 1, **{"Idempotency-Key": key_of(1)} | RESUMABLE)
    assert begun.id is not None
    assert other.delete(f"/v1/streams/{begun.id.partition(':')[0]}").status_code == 200
    assert rest(other, begun.id)[-1].json()["error"]["code"] == "request_cancelled"


def test_responses_are_found_continued_and_deleted(stack: Stack, client: openai.OpenAI, other: httpx.Client) -> None:
    """Turns of one conversation may be in different shards."""
    made = [client.responses.create(model=NAME, input=f"turn {turn}", max_output_tokens=3) for turn in range(8)]
    assert {shard_of(response.id) for response in made} == {0, 1}
    for response in made:
        assert other.get(f"/v1/responses/{response.id}").json()["id"] == response.id
        after = client.responses.create(model=NAME, input="next", previous_response_id=response.id, max_output_tokens=3)
        items = other.get(f"/v1/responses/{after.id}/input_items").json()["data"]
        assert response.output[0].id in [item["id"] for item in items]
        assert other.delete(f"/v1/responses/{response.id}").json()["deleted"]
        assert other.get(f"/v1/responses/{response.id}").status_code == 404
    running = client.responses.create(background=True, model=NAME, input="SLOWabc", max_output_tokens=300)
    assert other.post(f"/v1/responses/{running.id}/cancel").json()["status"] == "cancelled"


def test_the_lines_of_a_batch_are_spread(stack: Stack, client: openai.OpenAI) -> None:
    lines = [line(f"{number}", BODY | {"prompt": f"hello {number}"}) for number in range(24)]
    batch = ended(client, create(client, jsonl(lines)))
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed) == ("completed", 24)
    spread = Counter(shard_of(entry["response"]["request_id"]) for entry in entries(client, batch.output_file_id))
    assert min(spread[0], spread[1]) > 0


def test_overviews_of_both_shards(stack: Stack, http: httpx.Client) -> None:
    page = samples(http.get("/metrics").text)
    for shard in ("0", "1"):
        assert [page[f"orca:{name}", shard] for name in ("pool_answers", "engines", "gateways_wanted")] == [1, 1, 2]
        assert page["vllm:generation_tokens_total", shard] > 0
    assert page["orca:gateway_memory_bytes", None] > 0
    with http.stream("GET", "/ui/feed") as feed:
        state = next(text for text in feed.iter_lines() if text.startswith('data: {"at"'))
    assert state.count('"name"') == 2


def test_status_names_the_shard_of_each_figure(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    status.run(["--url", stack.url])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line[0] == "engines"] == [["engines", "1", "shard", str(n)] for n in (0, 1)]


def test_one_shard_away(servers: list[Server], stack: Stack, http: httpx.Client) -> None:
    """Streams of the other shard go on, and new requests go there. Those of the shard that is away wait for it, as do
    requests with its keys."""
    body = SLOW | {"stream": True}
    with (
        http.stream("POST", "/v1/completions", json=body, headers={"Idempotency-Key": key_of(0)}) as a,
        http.stream("POST", "/v1/completions", json=body, headers={"Idempotency-Key": key_of(1)}) as b,
    ):
        lines_a, lines_b = a.iter_lines(), b.iter_lines()
        begun = [next(lines_a)], [next(lines_b)]
        servers[1].call(servers[1].server.stop())
        try:
            assert {shard_of(completion(http)) for _ in range(6)} == {0}
            assert completion(http, key=key_of(0))
            key = key_of(1)
            refused = http.post("/v1/completions", json=BODY, headers={"Idempotency-Key": key})
            assert error_of(refused) == "pool_unavailable"
            assert completion_text([*begun[0], *lines_a]) == "SLOWabc " * 10
            wait_until(lambda: "shard 1: The request pool does not answer" in http.get("/ready").text)
            assert http.get("/ready").status_code == http.get("/health").status_code == 200
            page = samples(http.get("/metrics").text)
            assert (page["orca:pool_answers", "0"], page["orca:pool_answers", "1"]) == (1, 0)
            assert ("orca:engines", "1") not in page
            assert http.get("/version").json()["numerics"] == "echo"
        finally:
            servers[1].call(servers[1].server.start())
        assert completion_text([*begun[1], *lines_b]) == "SLOWabc " * 10
    assert shard_of(completion(http, key=key)) == 1
    wait_until(lambda: (ready := http.get("/ready")).status_code == 200 and ready.text == "")


def test_slots_that_move_take_their_earlier_requests_along(
    servers: list[Server], stack: Stack, http: httpx.Client, tiny_folder: Path
) -> None:
    """While a shard is new or draining, the earlier requests of the slots that move are found; later requests go to the
    shard that has the slots then."""
    early, late = [key_of(0), key_of(1)], [key_of(0), key_of(1)]
    only_first = f"0={servers[0].url}"
    new, draining = f"{only_first} 1:new={servers[1].url}", f"{only_first} 1:draining={servers[1].url}"
    with ExitStack() as exits:

        def gateway(urls: str) -> httpx.Client:
            stack = exits.enter_context(Stack(urls, "sharded", tiny_folder, Settings(), engine=False))
            client = exits.enter_context(httpx.Client(base_url=stack.url, timeout=20))
            wait_until(lambda: client.get("/ready").status_code == 200)
            return client

        before, growing = gateway(only_first), gateway(new)
        ids = [completion(before, key=key) for key in early]
        assert [shard_of(id) for id in ids] == [0, 0]
        assert [completion(growing, key=key) for key in early] == ids
        grown = [completion(growing, key=key) for key in late]
        assert [shard_of(id) for id in grown] == [0, 1]
        assert [completion(http, key=key) for key in late] == grown  # once it is not new any more

        shrinking = gateway(draining)
        assert [completion(shrinking, key=key) for key in late] == grown
        assert {shard_of(completion(shrinking, key=key_of(shard))) for shard in (0, 1)} == {0}
        assert {shard_of(completion(shrinking)) for _ in range(6)} == {0}
        assert shrinking.get(f"/v1/streams/{grown[1]}").status_code == 200


def test_a_full_shard_is_passed_over(urls: str, tiny_folder: Path) -> None:
    """A bound is that of one shard; a request is refused when no shard has room."""
    with Stack(urls, "bounded", tiny_folder, Settings(max_waiting=2), engine=False) as stack:
        http = stack.http
        for pool in stack.pools.values():
            stack.pool = pool
            stack.call(show_an_engine(stack, ready=1))
        wait_until(lambda: (ready := http.get("/ready")).status_code == 200 and ready.text == "")
        placed = [http.post("/v1/responses", json=BACKGROUND) for _ in range(4)]
        assert Counter(shard_of(made.json()["id"]) for made in placed) == {0: 2, 1: 2}
        assert error_of(http.post("/v1/responses", json=BACKGROUND)) == "rate_limit_exceeded"
