"""The live feed over HTTP: what its watchers get, and from whom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sse_client import completion_text
from stack import Server, Stack
from waiting import wait_until

from gateway.live import feed as feed_module
from services.live import publisher
from services.live.frames import END, FRAMES
from services.settings.settings import Settings

ALICE, BOB = {"Authorization": "Bearer key-of-alice"}, {"Authorization": "Bearer key-of-bob"}


class Feed:
    """An open feed."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()
        self.described: dict[int, dict[str, Any]] = {}
        self.computed: dict[int, list[tuple[int, str]]] = {}
        self.ended: dict[int, str] = {}
        self.states: list[dict[str, Any]] = []

    def read(self) -> bool:
        """Take the next event. False at the end of the feed."""
        name = next((line for line in self._lines if line), None)
        if name is None:
            return False
        data = json.loads(next(self._lines).removeprefix("data: "))
        match name:
            case "event: iterations":
                self._take(data)
            case "event: state":
                self.states.append(data)
            case _:
                raise AssertionError(name)
        return True

    def _take(self, data: dict[str, Any]) -> None:
        self.described |= {int(n): request for n, request in data["requests"].items()}
        for iteration in data["iterations"]:
            for n, tokens, work in iteration["requests"]:
                self.computed.setdefault(n, []).append((tokens, work))
            self.ended |= dict(iteration["ended"])

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.read(), "the feed has ended"

    def until_ended(self, requests: int) -> None:
        self.until(lambda: len(self.ended) == requests)


def subscribers(stack: Stack) -> int:
    return int(stack.call(stack.pool._server.command("PUBSUB", "NUMSUB", stack.pool._prefix + "live"))[1])


@contextlib.contextmanager
def opened(stack: Stack, headers: dict[str, str]) -> Iterator[Feed]:
    """A feed whose schedulers publish."""
    with httpx.stream("GET", f"{stack.url}/ui/feed", headers=headers, timeout=20) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        wait_until(lambda: stack.recorder.watched and subscribers(stack))
        yield Feed(response)


def complete(stack: Stack, headers: dict[str, str], **fields: Any) -> str:
    body = {"prompt": "hello there", "max_tokens": 5, "ignore_eos": True, **fields}
    answer = httpx.post(f"{stack.url}/v1/completions", json=body, headers=headers, timeout=20)
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


def test_it_shows_each_token_and_ids_to_their_tenant_only(served: Stack) -> None:
    with opened(served, ALICE) as alice, opened(served, BOB) as bob:
        ids = [complete(served, headers) for headers in (ALICE, BOB)]
        for feed, own, other in ((alice, *ids), (bob, *reversed(ids))):
            feed.until_ended(2)
            assert [n for n, request in feed.described.items() if request.get("id") == f"{own}/0"]
            assert other not in json.dumps([feed.described, feed.states])
            assert set(feed.ended.values()) == {"length"}
            for n, request in feed.described.items():
                assert feed.computed[n] == [(request["prompt"], "i")] + 4 * [(1, "t")]


def test_the_state_of_the_pool_comes_at_once_and_each_second(served: Stack) -> None:
    with opened(served, ALICE) as feed:
        complete(served, ALICE)
        feed.until(lambda: feed.states and feed.states[-1]["ttft_ms"])
        state = feed.states[-1]
        assert [engine["name"] for engine in state["engines"]] == ["seat"]
        assert state["engines"][0]["blocks"] == served.figures.num_blocks
        assert (state["gateways"], state["demo"]) == (1, False)
        assert state["ttft_ms"][0] <= state["ttft_ms"][1]
        assert "engine_pid" not in state["engines"][0]


def test_many_watchers_share_a_subscription_which_ends_with_the_last(
    served: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "WATCH_TTL", 1.2)
    with opened(served, ALICE), opened(served, ALICE), opened(served, BOB):
        assert subscribers(served) == 1
    wait_until(lambda: not subscribers(served))
    wait_until(lambda: not served.recorder.watched)
    complete(served, ALICE)
    assert served.recorder.take() is None


def test_the_number_of_watchers_is_bounded(served: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MOST_OF_TENANT", 1)
    monkeypatch.setattr(feed_module, "MOST_WATCHERS", 2)
    with opened(served, ALICE):
        refused = httpx.get(f"{served.url}/ui/feed", headers=ALICE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_watchers")
        assert refused.headers["retry-after"] == "5"
        with opened(served, BOB):
            assert httpx.get(f"{served.url}/ui/feed", headers=BOB).status_code == 429
    with opened(served, ALICE):
        pass


def test_every_gateway_shows_every_engine_until_it_stops(served: Stack) -> None:
    with (
        served.second() as second,
        httpx.stream("GET", f"{second.url}/ui/feed", headers=ALICE, timeout=20) as response,
    ):
        wait_until(lambda: served.recorder.watched and subscribers(served))
        feed = Feed(response)
        complete(served, ALICE)
        feed.until_ended(1)
        second.call(second.app.state.live.stop())
        while feed.read():
            pass
        again = httpx.get(f"{second.url}/ui/feed", headers=ALICE)
        assert again.json()["error"]["code"] == "shutting_down"


def test_a_cluster_that_stops_ends_all_feeds(served: Stack) -> None:
    with opened(served, ALICE) as alice, opened(served, BOB) as bob:
        served.call(served.pool.broadcast().publish(FRAMES, END))
        for feed in (alice, bob):
            while feed.read():
                pass


def test_an_outage_of_the_pool_interrupts_it(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the feed nor what runs ends."""
    monkeypatch.setattr(feed_module, "RETRY", 0.05)
    monkeypatch.setattr(publisher, "FIRST_RETRY", 0.05)
    body = {"prompt": "SLOWabc ", "max_tokens": 80, "stream": True}
    with (
        Server(tmp_path) as server,
        Stack(server.url, "p", tiny_folder, Settings()) as stack,
        opened(stack, {}) as feed,
        httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=20) as running,
    ):
        lines = running.iter_lines()
        begun = [next(lines)]
        server.call(server.server.stop())
        server.call(server.server.start())
        assert completion_text([*begun, *lines]) == "SLOWabc " * 10
        wait_until(lambda: stack.recorder.watched and subscribers(stack))
        id = complete(stack, {})
        feed.until(lambda: any(request["id"] == f"{id}/0" for request in feed.described.values()))
