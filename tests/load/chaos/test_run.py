"""What makes a chaos run fail, how its faults are planned and injected, and how answers are compared."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from load.chaos import __main__ as command
from load.chaos.aof import Transaction
from load.chaos.checker import Least, check
from load.chaos.faults import FAULTS, Fault, plan
from load.chaos.grounds import AskedModel, ChaosOptions, History, Injection, OwnPool, Shards, by_model, shards_of
from load.chaos.history import Delivery, Done, End, Recorder, Submit, Violation, read
from load.chaos.run import inject, inject_faults, keep_histories, print_results, run
from load.chaos.site import NoTarget, Site, connect
from load.chaos.streams import Outcome, Recovery, Streams, as_events, recovery
from load.chaos.workload import difference, error_in, is_constrained, naming, poison, requests, vectors
from load.server import pool_servers, until
from load.trace import HttpRequest
from services.client.sse import Call, Choice, StreamedAnswer

OPTIONS = ChaosOptions(Path(), seconds=60, streams=(2,), length=32)
SITE: Any = None  # the faults of these tests have no effect
ID = f"cmpl-{'0' * 32}"


def outcome(name: str = "greedy", **fields: object) -> Outcome:
    return replace(Outcome(HttpRequest("/", {}, name), 0, 1.0, arrivals=[1.0, 2.0, 4.5], end=5.0), **fields)


def held(*outcomes: Outcome, violations: tuple[Violation, ...] = ()) -> bool:
    verdict = check([], [], Least(0, 0, 0))
    verdict.violations.extend(violations)
    return print_results(OPTIONS, [Injection("engine", 2.0, streams=2)], list(outcomes), verdict)


def test_a_run_fails_for_a_request_that_failed_or_differs_and_for_a_violation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    died = "the engine died, or the scheduler failed, 3 times while it ran this request"
    assert held(outcome(), outcome("poison", error=died))
    assert "| engine | 1 | 2 | 2.5 | 2.5 | 2.5 | 2.5 |" in capsys.readouterr().out
    assert held(outcome(error="status 429: no", status=429), outcome(error="status 408: no", status=408))
    assert not held(outcome(error="status 400: no", status=400))
    assert not held(outcome(error="no sign of life"))
    assert not held(outcome(wrong="choice 0: text"))
    assert not held(outcome(invalid="'a' is not of type 'integer'"))
    assert not held(outcome("poison")), "poison must fail"
    assert not held(outcome(), violations=(Violation("fence", "r/0"),))
    assert "| other violations | 1 |" in capsys.readouterr().out


async def test_faults_come_one_after_the_other() -> None:
    done = []

    async def hit(site: Site) -> None:
        done.append("hit")

    async def miss(site: Site) -> None:
        raise NoTarget("engine")

    streams = with_open(2)
    faults = [Fault("a", hit), Fault("b", miss), Fault("a", hit)]
    injections = await inject_faults(SITE, faults, 0.02, 60, streams, 3)
    missed = ("b", "no engine", 2)
    # a fault without a target is repeated
    assert [(i.fault, i.skipped, i.streams) for i in injections] == [("a", "", 2), missed, ("a", "", 2), missed, missed]
    assert done == ["hit", "hit"]
    assert await inject_faults(SITE, [Fault("a", hit)], 0.02, 0.1, with_open(1), 3) == []  # not half of them are open
    assert (await inject(SITE, Fault("a", hit), with_open(0))).skipped == "no open stream"


def with_open(count: int) -> Streams:
    streams = Streams(SITE, None, 1.0)
    streams.outcomes = [outcome(end=0.0)] * count + [outcome()]
    return streams


def test_each_kind_comes_once_and_then_those_that_do_not_take_all() -> None:
    small = {name for name, fault in FAULTS.items() if not fault.takes_all}
    chosen = [fault.name for fault in plan(list(FAULTS.values()), len(FAULTS) + len(small), random.Random(1))]
    assert sorted(chosen) == sorted([*FAULTS, *small])
    assert set(chosen[: len(FAULTS)]) == set(FAULTS)
    assert plan([FAULTS["raylet"]], 5, random.Random(1)) == [FAULTS["raylet"]]


def test_only_a_server_that_does_not_sync_loses_something_by_its_death() -> None:
    made = [Injection("engine", 1.0), Injection("pool", 2.0), Injection("everything", 3.0)]
    assert OwnPool(OPTIONS).losses(made) == []
    first, second = OwnPool(replace(OPTIONS, durability="everysec")).losses(made)
    assert second - first == pytest.approx(1.0, abs=0.01)


def test_an_unknown_fault_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["load.chaos", "--faults", "engine", "moon"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no fault moon" in capsys.readouterr().err


def test_recovery_is_where_the_silence_after_the_fault_ended() -> None:
    two = [outcome(arrivals=[9.9, 10.1, 12.0, 12.5, 20.0], end=99.0), outcome(arrivals=[9.8, 10.0, 15.0], end=99.0)]
    assert recovery(10.0, two) == Recovery(first=2.0, last=5.0)
    closed = [outcome(arrivals=[8.0], end=9.0), outcome(arrivals=[11.0], began=10.5, end=99.0)]
    assert recovery(10.0, closed) is None


def test_requests_are_divided_by_their_shards() -> None:
    end = End(1, 3.0, f"{ID}-1", 0, 1, "stop")
    assert shards_of([Submit(0, 1.0, 1), Delivery(0, 2.0, ID, 0, 0, 5), end, Done(2, 3.0, "refused")]) == {0: 0, 1: 1}


def test_each_model_is_judged_by_its_own_pool_and_requests() -> None:
    """An id without a tag is the first model's, and so is a request that was never accepted."""
    other, refused = f"{ID}-m3fa9c1", Submit(2, 1.0, 1)
    records = [Delivery(0, 2.0, ID, 0, 0, 5), Delivery(1, 2.0, other, 0, 0, 5), refused]
    pools = {"default.3.a": ID, "default.3.b": other}
    kept = [
        Transaction(number, [[b"HSET", f"orca:{{{pool}}}:{key}".encode(), b"state", b"waiting"]])
        for number, (pool, key) in enumerate((p, k) for p, id in pools.items() for k in (f"seq:{id}/0", "meta"))
    ]
    models = Transaction(9, [[b"SET", b"orca:{default.models}:1", b"{}"]])
    first, second = by_model(History(records, [*kept[::2], models, *kept[1::2]]))
    assert (first.records, first.of) == ([records[0], refused], {0, 2})
    assert [t.number for t in first.transactions] == [0, 1]
    assert (second.records, second.of) == ([records[1]], {1})
    assert [t.number for t in second.transactions] == [2, 3]
    alone = History(records[:1], [kept[0], models])
    assert by_model(alone) == [alone]


def test_models_have_their_own_streams_and_requests(default_model: Path) -> None:
    given = (str(default_model), json.dumps({"model": str(default_model), "pool": "b", "deadly_token": 7}))
    options = ChaosOptions(Path(), model=given, streams=(6, 2), pause=(0.5,), deadly_token=9)
    first, second = (AskedModel.of(options, place) for place in (0, 1))
    assert (first.streams, first.pause, second.streams, second.pause) == (6, 0.5, 2, 0.5)
    assert (second.entry["pool"], second.entry["served_model_name"]) == ("b", ["model-1"])
    asked = [*first.requests(options), *second.requests(options)]
    assert len({request.name for request in asked}) == len(asked), "each has an undisturbed answer of its own"
    assert {request.body.get("model") for request in asked} == {None, "model-1"}
    assert (first.poison().body["prompt"][1], second.poison().body["prompt"][1]) == (9, 7)
    assert [request.body.get("model") for request in naming(asked[:3], ["", "a"])] == [None, "a", None]


def answer() -> StreamedAnswer:
    return StreamedAnswer(
        {0: Choice("a", [1], [-0.5], "stop"), 1: Choice("b", [2], [-1.0], "length")}, completion_tokens=2
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"text": "c"}, "choice 1: text 'c', expected 'b'"),
        ({"token_ids": [3]}, "token_ids"),
        ({"finish_reason": "stop"}, "finish_reason"),
        ({"calls": [Call("a", "f", "{}")]}, "calls"),
        ({"reasoning": "c"}, "reasoning 'c', expected ''"),
        ({"logprobs": []}, "0 log probabilities, expected 1"),
        ({"logprobs": [-1.1]}, "a log probability differs by"),
    ],
)
def test_differences_from_the_undisturbed_answer(change: dict[str, Any], told: str) -> None:
    got = answer()
    assert difference(answer(), got) == ""
    got.choices[1] = replace(got.choices[1], **change)
    assert told in difference(answer(), got)
    got.completion_tokens = 3
    assert "3 tokens counted" in difference(answer(), got)


def test_the_workload_has_all_kinds_and_never_the_deadly_token() -> None:
    made = requests(32, 9, [40, 200], constrained=True)
    assert len({request.name for request in made}) == len(made)
    assert all(request.body["logit_bias"] == {"9": -100} for request in made)
    keys = {key for request in made for key in request.body}
    assert {"n", "stop", "seed", "logprobs", "top_logprobs", "tools", "response_format", "structured_outputs"} <= keys
    assert 9 in poison(9).body["prompt"]
    texts = [request.body.get("prompt") or request.body["messages"][0]["content"] for request in made]
    firsts = [text if isinstance(text, str) else text[0] for text in texts]
    assert len({text[:7] for text in firsts}) == len(made), "no prompt is in the prefix cache"
    assert all(len(short) < 250 < 700 < len(long) for short, long in zip(firsts[::2], firsts[1::2], strict=False))


def test_vectors_are_recorded_as_a_token_and_an_end_of_each_text(tmp_path: Path) -> None:
    made = {"id": "embd-1", "data": [{"index": 1, "embedding": "AACAPw=="}, {"index": 0, "embedding": "AAAAAA=="}]}
    got = StreamedAnswer()
    with Recorder(tmp_path / "clients.jsonl", lambda: 5.0) as recorder:
        for event in as_events(made | {"usage": {"prompt_tokens": 4, "completion_tokens": 0}}):
            got.feed(event)
            recorder.event(3, event)
    got.check()
    assert [(choice.text, choice.token_ids) for choice in got.choices.values()] == [
        ("AAAAAA==", [0]),
        ("AACAPw==", [0]),
    ]
    expected = [(Delivery(3, 5.0, "embd-1", n, 0, 0), End(3, 5.0, "embd-1", n, 1, "stop")) for n in (0, 1)]
    assert list(read(tmp_path / "clients.jsonl")) == [record for pair in expected for record in pair]


def test_requests_for_vectors_have_texts_and_ids_but_never_the_deadly_token() -> None:
    made = vectors(500, [30, 40, 50])
    assert [request.choices for request in made] == [1, 2, 24, 30]
    assert all(500 not in ids for ids in made[-1].body["input"])
    assert poison(500, for_vectors=True).body["input"] == [[10, 500, 11]]


def test_a_request_with_a_budget_needs_reasoning() -> None:
    asked = next(request for request in requests(10, 9, constrained=True) if request.name == "reasoning")
    assert error_in(asked, StreamedAnswer({0: Choice("a", finish_reason="length")})) == "no reasoning"
    assert not error_in(asked, StreamedAnswer({0: Choice("a", finish_reason="length", reasoning="b")}))


CONSTRAINED = {request.name: request for request in requests(10, 9, constrained=True) if is_constrained(request)}
GOOD = {"name": "ada", "age": 36, "languages": ["Latin"]}
CALL = Call("c", "get_weather", '{"city": "paris", "days": 3}')


@pytest.mark.parametrize(
    ("name", "choice", "error"),
    [
        ("document", Choice(json.dumps(GOOD), finish_reason="stop"), ""),
        ("document", Choice(json.dumps(GOOD | {"age": 200}), finish_reason="stop"), "200 is greater than"),
        ("document", Choice(json.dumps(GOOD)[:-1], finish_reason="stop"), "not JSON"),
        ("document", Choice(json.dumps(GOOD)[:-1], finish_reason="length"), ""),
        ("regular expression", Choice("2024-02-29", finish_reason="stop"), ""),
        ("regular expression", Choice("2024-02-29T", finish_reason="stop"), "is not one of"),
        ("one of a list", Choice("blu", finish_reason="stop"), "is not one of"),
        ("tools, two choices", Choice(calls=[CALL], finish_reason="tool_calls"), ""),
        ("tools, two choices", Choice(calls=[CALL], finish_reason="stop"), "finish_reason 'stop'"),
        ("tools, two choices", Choice("sunny", finish_reason="stop"), "0 calls and the text 'sunny'"),
        ("tools, two choices", Choice(calls=[CALL, Call("b", "buy", "{}")], finish_reason="tool_calls"), "buy"),
        ("tools, two choices", Choice(calls=[Call("b", "get_weather", "{}")], finish_reason="tool_calls"), "required"),
        ("one tool", Choice(calls=[CALL], finish_reason="tool_calls"), "get_weather"),
    ],
)
def test_a_constrained_answer_is_checked_if_it_ended_by_itself(name: str, choice: Choice, error: str) -> None:
    found = error_in(CONSTRAINED[name], StreamedAnswer({0: choice}))
    assert error in found if error else not found


async def test_a_server_that_was_killed_keeps_its_whole_file_again(tmp_path: Path) -> None:
    ground = Shards(ChaosOptions(tmp_path))
    async with pool_servers(tmp_path, 1) as (server,):

        def keeps(pid: int | None) -> bool:
            with suppress(redis.RedisError), connect(server.data_dir) as client:
                kept = client.config_get("auto-aof-rewrite-percentage")["auto-aof-rewrite-percentage"]
                return kept == "0" and client.info("server")["process_id"] != pid
            return False

        ground.kept = [server.data_dir]
        keeping = asyncio.create_task(keep_histories(ground))
        await until(lambda: keeps(None))
        os.kill(killed := server.pid, signal.SIGKILL)
        await until(lambda: keeps(killed))
        keeping.cancel()


@pytest.mark.chaos
async def test_nothing_is_lost_when_the_server_of_a_shard_dies(tmp_path: Path) -> None:
    assert await run(Shards(ChaosOptions(tmp_path, seconds=30.0, every=6.0, streams=(8,))))
