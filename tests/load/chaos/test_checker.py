"""Histories of clients and pool: correct ones pass, and each planted violation is reported."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from load.chaos.checker import Circumstances, Least, check
from load.chaos.history import Connect, Delivery, Done, End, Record, Recorder, Submit, read
from load.chaos.planted import PLANTS, missed_plants
from services.client.sse import Event
from tests.load.chaos.pool_file import (
    acquire,
    append,
    at,
    claim,
    end,
    exchange,
    said_dead,
    submit,
    transactions,
    vacate,
)
from tests.services.client.streams import chunk

POOL = transactions(
    submit("r", 2),
    acquire("s", "1:a"),
    exchange("s", 1, claim("s", "r/0"), claim("s", "r/1")),
    exchange("s", 2, append("r/0", 5), append("r/1", 7), end("r/1", "s")),
    exchange("s", 3, append("r/0", 6), end("r/0", "s")),
)


def token(choice: int, index: int, token: int, pool_id: str = "r") -> Delivery:
    return Delivery(1, 0.5, pool_id, choice, index, token)


def ends(choice: int, index: int, pool_id: str = "r") -> End:
    return End(1, 0.6, pool_id, choice, index, "length")


BEGIN: list[Record] = [Submit(1, 0.0, 2), Connect(1, 0.1, ""), token(0, 0, 5), token(1, 0, 7)]
CAME_BACK: list[Record] = [*BEGIN, Connect(1, 0.2, "r:1.1")]
REST: list[Record] = [ends(1, 1), token(0, 1, 6), ends(0, 2), Done(1, 0.9)]


NONE = Least(0, 0, 0)


def rules(
    *records: Record, pool: list = POOL, least: Least = NONE, losses: tuple[float, ...] = (), **known: Any
) -> set[str]:
    verdict = check(records, pool, least, Circumstances(losses=losses, **known))
    return {violation.rule for violation in verdict.violations}


def test_a_correct_history_passes() -> None:
    assert rules(*CAME_BACK, *REST) == set()


def test_an_error_ends_a_request_and_what_came_before_is_whole() -> None:
    assert rules(*BEGIN, Done(1, 0.9, "the engine died under it")) == set()


def test_an_answer_may_be_sent_again_from_its_start_on_request() -> None:
    again = [Connect(1, 0.3, ""), token(0, 0, 5), token(1, 0, 7)]
    assert rules(*CAME_BACK, *REST[:2], *again, *REST) == set()


def test_a_server_that_kept_nothing_gives_it_another_id() -> None:
    lost = [Delivery(1, 0.2, "q", 0, 0, 5), Connect(1, 0.3, ""), token(0, 0, 5), token(1, 0, 7)]
    assert rules(Submit(1, 0.0, 2), Connect(1, 0.1, ""), *lost, *REST) == set()


def test_a_request_that_the_pool_does_not_know() -> None:
    assert rules(*CAME_BACK, *REST, pool=[]) == {"lost"}


def test_a_server_that_does_not_sync_forgets_only_what_came_just_before_its_death() -> None:
    assert rules(*CAME_BACK, *REST, pool=[], losses=(0.5,)) == set()
    assert rules(*CAME_BACK, *REST, pool=[], losses=(60.0,)) == {"lost"}
    assert rules(*CAME_BACK, *REST, pool=[], losses=(-0.1,)) == {"lost"}


def test_an_empty_history_is_not_correct() -> None:
    assert {violation.rule for violation in check([], []).violations} == {"too little"}


@pytest.mark.parametrize("least", [Least(2, 0, 0), Least(0, 4, 0), Least(0, 0, 1)])
def test_a_run_in_which_too_little_happened(least: Least) -> None:
    assert rules(*CAME_BACK, *REST, least=least) == {"too little"}
    assert rules(*CAME_BACK, *REST, least=Least(1, 3, 0)) == set()


def test_an_answer_without_ids() -> None:
    assert rules(Submit(1, 0.0, 1), Connect(1, 0.1, ""), Done(1, 0.9), pool=POOL) == {"lost", "unfinished"}


def test_an_owner_that_lost_its_seat_as_dead_must_not_be_seen_alive_later() -> None:
    taken = transactions(at(2, said_dead("s", "1:a") + vacate("s") + acquire("s", "2:b", 2)))
    pool = [*POOL, *taken]
    assert rules(*CAME_BACK, *REST, pool=pool, seen={77: 1.9}) == set()
    assert rules(*CAME_BACK, *REST, pool=pool, seen={77: 2.1}) == {"takeover"}


def test_each_violation_planted_in_a_right_history_is_found() -> None:
    pool = transactions(
        submit("r", 2),
        at(1, acquire("s", "1:a", 1)),
        exchange("s", 1, claim("s", "r/0"), claim("s", "r/1")),
        exchange("s", 2, append("r/0", 5), append("r/1", 7), end("r/1", "s")),
        exchange("s", 3, append("r/0", 6), end("r/0", "s")),
    )
    records = [*BEGIN[:2], token(1, 0, 7), token(0, 0, 5), *REST[1:2], *REST[:1], *REST[2:]]
    right = check(records, pool)
    assert right.violations == []
    assert missed_plants(right, records, pool, random.Random(0)) == []


def test_violations_are_planted_in_answers_of_one_token() -> None:
    pool = transactions(
        submit("r", 2),
        at(1, acquire("s", "1:a", 1)),
        exchange("s", 1, claim("s", "r/0"), claim("s", "r/1")),
        exchange("s", 2, append("r/0", 0), append("r/1", 0), end("r/0", "s"), end("r/1", "s")),
    )
    records = [*BEGIN[:2], token(0, 0, 0), ends(0, 1), token(1, 0, 0), ends(1, 1), Done(1, 0.9)]
    right = check(records, pool)
    assert right.violations == []
    assert missed_plants(right, records, pool, random.Random(0)) == []


def test_a_checker_that_misses_violations_is_reported() -> None:
    right = check([], [], NONE)
    missed = missed_plants(right, [], [], random.Random(0))
    assert len(missed) == len(PLANTS)
    assert all("nowhere to plant it" in line for line in missed)


PLANTED: dict[str, tuple[str, list[Record]]] = {
    "a token left out": ("lost", [*BEGIN, ends(1, 1), ends(0, 2), Done(1, 0.9)]),
    "a token twice": ("duplicated", [*BEGIN, token(0, 0, 5), *REST]),
    "a token twice, after coming back": ("duplicated", [*CAME_BACK, token(0, 0, 5), *REST]),
    "a token left out, after coming back": ("lost", [*BEGIN[:3], Connect(1, 0.2, "r:1.0"), *REST]),
    "another token than committed": ("wrong", [*BEGIN, ends(1, 1), token(0, 1, 9), ends(0, 2), Done(1, 0.9)]),
    "another token than before": ("wrong", [*BEGIN, Connect(1, 0.2, ""), token(0, 0, 9), token(1, 0, 7), *REST]),
    "another request": ("wrong", [*CAME_BACK, Delivery(1, 0.3, "q", 0, 1, 6), *REST]),
    "an end too early": ("wrong", [*BEGIN, ends(1, 1), ends(0, 1), Done(1, 0.9)]),
    "an end twice": ("duplicated", [*CAME_BACK, *REST[:1], *REST]),
    "a token after the end": ("after the end", [*CAME_BACK, *REST[:-1], token(0, 3, 8), *REST[-1:]]),
    "a token after all": ("after the end", [*CAME_BACK, *REST, token(0, 3, 8)]),
    "a choice that never ended": ("unfinished", [*CAME_BACK, *REST[:2], *REST[3:]]),
    "a client that waits for ever": ("unfinished", [*CAME_BACK, *REST[:-1]]),
}


@pytest.mark.parametrize(("rule", "records"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_reported(rule: str, records: list[Record]) -> None:
    assert rule in rules(*records)


def test_the_pools_own_violations_are_reported_too() -> None:
    assert rules(*CAME_BACK, *REST, pool=POOL[:-1]) >= {"unfinished", "wrong"}


def test_records_as_they_are_written_and_read(tmp_path: Path) -> None:
    times = iter([0.0, 0.1, 0.5, 0.9])
    with Recorder(tmp_path / "clients.jsonl", lambda: next(times)) as recorder:
        recorder.submit(1, 2)
        recorder.connect(1, "")
        recorder.event(1, Event(json.dumps(chunk(0, "a b", [5, 6], "stop")), "r:3.0"))
        recorder.event(1, Event("[DONE]"))
        recorder.done(1)
    assert list(read(tmp_path / "clients.jsonl")) == [
        Submit(1, 0.0, 2),
        Connect(1, 0.1, ""),
        Delivery(1, 0.5, "r", 0, 0, 5),
        Delivery(1, 0.5, "r", 0, 1, 6),
        End(1, 0.5, "r", 0, 2, "stop"),
        Done(1, 0.9),
    ]
