"""Long bodies are handled off the event loop with fair turns; excessive ones are refused before they cost anything."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack import Stack
from waiting import wait_until

from gateway import executor as executor_module
from gateway import model as model_module
from gateway.errors import ApiError, Kind
from gateway.executor import INLINE, MAX_PENDING, MAX_PENDING_PER_TENANT, SHORT, WORKERS, FairExecutor
from gateway.schemas.json_size import MOST_MEMBERS, MOST_VALUES, _outside_strings, too_many
from services.text import Tokenizer

LONG = INLINE + 1


async def test_long_work_is_off_the_loop_and_short_work_is_not() -> None:
    executor = FairExecutor()
    assert await executor.run("a", INLINE, threading.current_thread) is threading.current_thread()
    assert (await executor.run("a", LONG, threading.current_thread)).name.startswith("executor")
    executor.close()


async def test_short_work_is_done_piece_by_piece_between_turns_of_the_loop() -> None:
    """However many requests arrive at once, other tasks run on the event loop after each piece of work."""
    executor, done = FairExecutor(), list[int]()
    pieces = [asyncio.create_task(executor.run("a", 1, done.append, i)) for i in range(20)]
    seen = 0
    await asyncio.sleep(0)
    pieces[5].cancel()
    while not all(piece.done() for piece in pieces):
        assert len(done) - seen <= 1
        seen = len(done)
        await asyncio.sleep(0)
    assert done == [i for i in range(20) if i != 5]
    assert await executor.run("a", 1, lambda: "at once, where nobody is before it") is not None
    executor.close()


async def test_work_that_is_cancelled_once_its_turn_was_given_does_not_stop_the_turns() -> None:
    executor, done = FairExecutor(), list[int]()
    pieces = [asyncio.create_task(executor.run("a", 1, done.append, i)) for i in range(4)]
    await asyncio.sleep(0)  # the first has run, the others wait
    await asyncio.sleep(0)
    assert executor._inline_ran, "the second has its turn"
    assert done == [0], "and has not run yet"
    pieces[1].cancel()
    await asyncio.wait(pieces, timeout=5)
    assert done == [0, 2, 3]
    assert pieces[1].cancelled()
    executor.close()


async def test_tenants_take_turns_with_short_work() -> None:
    executor, done = FairExecutor(), list[str]()
    flood = [asyncio.create_task(executor.run("a", 1, done.append, "a")) for _ in range(20)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(executor.run(name, 1, done.append, name)) for name in ("b", "c", "b")]
    await asyncio.gather(*others, *flood)
    assert "".join(done).startswith("aaabcab"), "one of each tenant, by turns, once others are there"
    executor.close()


async def test_a_tenant_waits_for_itself_and_lets_others_by() -> None:
    executor, go = FairExecutor(), threading.Event()
    blocked = [asyncio.create_task(executor.run("a", LONG, go.wait, 20)) for _ in range(WORKERS + 1)]
    await asyncio.sleep(0)
    assert await executor.run("b", LONG, lambda: "done") == "done"
    go.set()
    assert await asyncio.gather(*blocked) == [True] * len(blocked)
    executor.close()


async def test_short_work_waits_for_no_long_work_of_others() -> None:
    executor, go = FairExecutor(), threading.Event()
    blocked = [asyncio.create_task(executor.run(tenant, SHORT + 1, go.wait, 20)) for tenant in "abcd"]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        done = await asyncio.gather(*(executor.run(tenant, SHORT, lambda: "done") for tenant in "efg"))
    assert done == ["done"] * 3
    assert not any(call.done() for call in blocked)
    go.set()
    assert await asyncio.gather(*blocked) == [True] * 4
    executor.close()


async def test_too_much_in_line_is_refused_for_a_tenant_and_in_all() -> None:
    executor, go = FairExecutor(), threading.Event()
    tenants = [f"tenant {number}" for number in range(MAX_PENDING // MAX_PENDING_PER_TENANT + 1)]
    calls = [
        asyncio.create_task(executor.run(t, MAX_PENDING_PER_TENANT // 2, go.wait, 20))
        for t in tenants
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    assert [call.exception().kind for call in calls if call.done()] == [Kind.TOO_MANY_LONG]  # type: ignore[union-attr]
    with pytest.raises(ApiError) as refused:
        await executor.run(tenants[0], LONG, lambda: None)
    assert refused.value.kind is Kind.TOO_MANY_LONG
    newcomer = asyncio.create_task(executor.run("another", LONG, lambda: "let in"))
    assert await executor.run(tenants[0], INLINE, lambda: "short") == "short"
    go.set()
    assert await newcomer == "let in"
    await asyncio.gather(*calls, return_exceptions=True)
    assert await executor.run(tenants[0], LONG, lambda: "later") == "later"
    executor.close()


async def test_many_clients_of_a_tenant_are_let_in_at_once() -> None:
    executor, go = FairExecutor(), threading.Event()
    calls = [asyncio.create_task(executor.run("a", 16 << 10, go.wait, 20)) for _ in range(500)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*calls) == [True] * len(calls)
    executor.close()


async def test_a_thread_that_works_for_nobody_keeps_its_place() -> None:
    """Otherwise a client that sends and disconnects repeatedly could occupy all threads."""
    executor, begun, go = FairExecutor(), threading.Semaphore(0), threading.Event()

    def work() -> bool:
        begun.release()
        return go.wait(20)

    calls = []
    for _ in range(WORKERS + 1):
        calls.append(asyncio.create_task(executor.run("a", LONG, work)))
        if len(calls) == 1:
            await asyncio.to_thread(begun.acquire)
        await asyncio.sleep(0)
        calls[-1].cancel()
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(20):
            assert await executor.run("b", LONG, lambda: "done") == "done"
        assert not begun.acquire(blocking=False)
        assert [call.done() for call in calls] == [False, True, True]
    finally:
        go.set()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    assert await executor.run("a", LONG, lambda: "later") == "later"
    executor.close()


JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('",:[]{}\\a', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\,:{', max_size=4), inner, max_size=4),
    max_leaves=30,
)


@given(JSON)
def test_what_is_in_strings_does_not_count(value: object) -> None:
    """Removing the strings from JSON preserves its structure."""

    def emptied(value: object) -> object:
        if isinstance(value, str):
            return ""
        if isinstance(value, list):
            return [emptied(item) for item in value]
        return [emptied(item) for item in value.values()] if isinstance(value, dict) else value

    said, marks = orjson.dumps(value), b",[]"
    structure = orjson.dumps(emptied(value)).translate(None, delete=b'"')
    found = _outside_strings(said).translate(bytes.maketrans(b"{}", b"[]"), delete=b'":')
    assert [found.count(mark) for mark in marks] == [structure.count(mark) for mark in marks]


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b",".join([b"1"] * (MOST_VALUES + 2)) + b"]}",
        b'{"prompt":[' + b"[]," * (MOST_MEMBERS + 1) + b"[]]}",
        b'{"metadata":{' + b",".join(b'"%d":"a"' % i for i in range(MOST_MEMBERS)) + b"}}",
    ],
    ids=["values", "lists", "members"],
)
def test_too_many_values_are_refused(body: bytes) -> None:
    assert too_many(body) is not None


def test_a_text_may_have_any_characters() -> None:
    assert too_many(orjson.dumps({"prompt": "[{:," * MOST_VALUES + '\\"' * 1000})) is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "a" * 90_000}),
        ("/tokenize", {"messages": [{"role": "user", "content": "a" * 90_000}]}),
        ("/v1/completions", {"prompt": "a" * 90_000}),
        ("/v1/completions", {"prompt": "a" * 90_000, "truncate_prompt_tokens": 5}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 90_000}]}),
        ("/v1/responses", {"input": "a" * 90_000}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "a" * 90_000}]}),
    ],
)
def test_what_is_too_long_whatever_its_tokens_is_not_tokenized(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    def tokenized(*_: object) -> None:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(Tokenizer, "encode_batch", tokenized)
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert "maximum context length is 512 tokens" in answer.text


def test_a_long_text_that_may_fit_is_tokenized(http: httpx.Client) -> None:
    """The longest token has eleven characters, so this text may have 512 tokens."""
    text = "<assistant>" * 512
    answer = http.post("/tokenize", json={"prompt": text})
    assert answer.json()["count"] == 512
    again = http.post("/detokenize", json={"tokens": answer.json()["tokens"]})
    assert again.json()["prompt"] == text


def test_the_texts_behind_one_that_proved_too_long_are_not_tokenized(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenized: list[int] = []
    encode = Tokenizer.encode_batch

    def counted(self: Tokenizer, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        tokenized.append(len(texts))
        return encode(self, texts, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    monkeypatch.setattr(model_module, "PART", 20_000)
    body: dict[str, object] = {"prompt": ["a" * 5000] * 15, "max_tokens": 1}  # 5,000 tokens each, of 512
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "maximum context length is 512 tokens" in answer.text
    assert sum(tokenized) == 4
    tokenized.clear()
    assert http.post("/v1/completions", json=body | {"truncate_prompt_tokens": 5}).status_code == 200
    assert sum(tokenized) == 15


def test_bodies_of_which_the_rest_is_still_to_come_are_bounded(
    stack: Stack, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "MAX_PENDING_PER_TENANT", 80_000)
    body = orjson.dumps({"prompt": "hi", "max_tokens": 1, "metadata": {"a": "b"}}).ljust(60_000)
    host, port = stack.url.removeprefix("http://").split(":")
    half = socket.create_connection((host, int(port)))
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n" + body[:59_000])
    wait_until(lambda: http.post("/v1/completions", content=body).status_code == 429)
    half.close()
    wait_until(lambda: http.post("/v1/completions", content=body).status_code == 200)
