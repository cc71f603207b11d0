"""The scheduler keeps the order of the tenants' turns: a later claim does not overtake requests of other tenants."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

import pytest

from services.messages import Claim, Iteration
from services.pool.limits import BEHIND
from services.requests import BATCH_CLASS
from services.scheduling import Knobs, WarmUpTime
from tests.services.scheduling.scripted import EOS, claim, scripted


def of(tenant: str, id: str, rank: float, prompt: int = 4, new: int = 16, priority: int = 0) -> Claim:
    return replace(claim(id, rank, prompt, new), tenant=tenant, priority=priority)


@pytest.mark.parametrize(("tenant", "batch"), [("b", ["a1", "late"]), ("a", ["a1", "a2"])])
def test_an_earlier_request_takes_the_place_of_its_tenant_and_of_no_other(tenant: str, batch: list[str]) -> None:
    s = scripted(batch=2)
    s.scheduler.add([of("a", "a1", 1), of(tenant, "late", 9)])
    s.step()
    s.scheduler.add([of("a", "a2", 2)])
    s.step()
    assert list(s.batch) == batch


def test_a_flood_that_arrived_earlier_takes_no_blocks_of_another_tenant() -> None:
    s = scripted(blocks=6, knobs=Knobs(3, admission="on_demand"))
    s.scheduler.add([of("flood", "a1", 1), of("b", "b1", 9)])
    s.step()
    s.scheduler.add([of("flood", "a2", 2)])
    for _ in range(6):
        s.step()
    assert "b1" in s.batch
    assert "a2" not in s.batch


def test_a_flood_that_arrived_earlier_is_preempted_first_and_starts_last() -> None:
    s = scripted(blocks=8, knobs=Knobs(3, admission="on_demand"))
    s.scheduler.add([of("flood", "a1", 1), of("b", "b1", 9)])
    s.step()
    s.scheduler.add([of("flood", "a2", 2)])
    while not (iteration := s.select()) or not iteration.released:
        s.finish()
    assert iteration.released == ["a2"]
    s = scripted(batch=1)
    s.scheduler.add([of("flood", "a1", 1, new=1), of("b", "b1", 9, new=1), of("flood", "a2", 2)])
    s.step()
    s.step()
    assert list(s.batch) == ["b1"]


def test_of_equal_ranks_the_running_request_goes_on() -> None:
    s = scripted(blocks=4, knobs=Knobs(2, admission="on_demand"))
    s.scheduler.add([of("a", "a1", 1, new=8)])
    s.step()
    s.scheduler.add([of("a", "a2", 1, prompt=12, new=4)])
    s.step()
    assert list(s.batch) == ["a1"]


@pytest.mark.parametrize(
    ("running", "late", "batch"),
    [
        (["a1", "b1", "b2"], "a2", ["a1", "b1", "a2"]),  # b keeps one place
        (["a1", "b1"], "a2", ["a1", "b1"]),
        (["a1", "b1"], "c1", ["a1", "c1"]),  # c has none
    ],
)
def test_a_late_request_takes_no_only_place_for_its_tenant_s_second(
    running: list[str], late: str, batch: list[str]
) -> None:
    s = scripted(batch=len(running))
    ranks = {"a1": 0, "b1": 5, "b2": 6}
    s.scheduler.add([of(id[0], id, ranks[id], priority=id[0] != "b") for id in running])
    s.step()
    s.scheduler.add([of(late[0], late, 1, priority=1)])
    s.step()
    assert list(s.batch) == batch


def test_the_only_place_of_a_tenant_is_taken_for_an_earlier_class() -> None:
    s = scripted(knobs=Knobs(2, order="priority"))
    s.scheduler.add([of("a", "a1", 1), of("b", "b1", 60, priority=1)])
    s.step(elapsed=0.1)
    s.scheduler.add([replace(of("a", "urgent", 2), ttft=0.001)])
    s.step()
    assert list(s.batch) == ["a1", "urgent"]


def test_an_earlier_class_overtakes_other_tenants() -> None:
    s = scripted(batch=2, knobs=Knobs(2, order="priority"))
    s.scheduler.add([of("a", "a1", 9, priority=1), of("a", "a2", 10, priority=1)])
    s.scheduler.add([of("b", "b1", 5)])
    s.step()
    assert list(s.batch) == ["b1", "a1"]


@pytest.mark.parametrize("tenants", ["aaaa", "abab"])
def test_of_equal_ranks_a_request_that_was_sent_is_not_preempted(tenants: str) -> None:
    s = scripted(blocks=6, length=24, knobs=Knobs(4, admission="on_demand"))
    prompts, new = [14, 1, 1, 18], [8, 1, 8, 8]
    for i, tenant in enumerate(tenants):
        s.scheduler.add([of(tenant, str(i), 0.0, prompts[i], new[i])])
    while s.scheduler.held():
        if s.select() is None:
            break
        assert s.iteration is not None
        assert not set(s.iteration.released) & set(s.iteration.scheduled), "it was preempted in its own iteration"
        s.finish()
    assert {commit.id for commit in s.commits if commit.end} == set("0123")


def test_a_guest_gets_the_last_place_of_the_tenant_with_the_most() -> None:
    s = scripted(batch=3)
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2), of("c", "c1", 3)])
    s.step()
    room = s.scheduler.room()
    assert (room.requests, room.guests, room.tenants) == (0, 1, ["c", "flood"])
    s.scheduler.add([of("b", "b1", 9)])
    s.step()
    assert list(s.batch) == ["a1", "c1", "b1"]
    assert s.scheduler.room().guests == 0
    s.step({"b1": EOS})
    s.step()
    assert s.batch == {"a1": 1, "a2": 1, "c1": 1}, "the paused request continues where it was"


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_guests_leave_each_tenant_a_place_and_each_new_one_gets_one(order: Literal["fcfs", "priority"]) -> None:
    s = scripted(knobs=Knobs(4, order=order))
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2), of("flood", "a3", 3), of("c", "c1", 3)])
    s.step()
    s.scheduler.add([of("b", "b1", 9), of("b", "b2", 9), of("d", "d1", 9), of("e", "e1", 9)])
    s.step()
    assert list(s.batch) == ["a1", "c1", "b1", "d1"]
    assert s.scheduler.room().guests == 0, "more tenants than places"


def test_a_tenant_with_two_places_less_than_another_has_guests_too() -> None:
    s = scripted(batch=4)
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2), of("flood", "a3", 3), of("b", "b1", 4)])
    s.step()
    assert (s.scheduler.room().guests, s.scheduler.room().tenants) == (2, ["flood"])
    s.scheduler.add([of("b", "b2", 9), of("b", "b3", 9)])
    s.step()
    assert list(s.batch) == ["a1", "a2", "b1", "b2"]
    assert s.scheduler.room().tenants == ["b", "flood"]
    s.step()
    assert list(s.batch) == ["a1", "a2", "b1", "b2"], "the paused request takes no place of a guest"


def test_a_guest_enters_before_requests_of_others_that_were_claimed_for_free_places() -> None:
    s = scripted(batch=3)
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2), of("flood", "a3", 3, new=1)])
    s.step()
    s.scheduler.add([of("flood", "a4", 4), of("b", "b1", 9)])
    s.step()
    assert list(s.batch) == ["b1"]
    s.step()
    assert list(s.batch) == ["a1", "a2", "b1"]


def test_the_tenant_with_the_most_places_waits_while_guests_start() -> None:
    s = scripted(batch=5)
    s.scheduler.add([of("flood", f"a{i}", i) for i in range(4)] + [of("c", "c1", 5)])
    s.step()
    s.scheduler.add([of("b", "b1", 9)])
    s.step()
    assert list(s.batch) == ["c1", "b1"]
    s.step()
    assert list(s.batch) == ["a0", "a1", "a2", "c1", "b1"]


def test_a_guest_enters_while_the_time_for_prompts_is_short_although_places_are_not() -> None:
    s = scripted(knobs=Knobs(8, token_budget=8))
    s.scheduler.add([of("flood", f"a{i}", i, prompt=7) for i in range(5)])
    for _ in range(3):
        s.step()
    s.scheduler.add([of("b", "b1", 9)])
    s.step()
    assert list(s.batch) == ["b1"]


def tokens_beside(tenants: str) -> int:
    """Return the tokens of an iteration on an engine that takes 1 ms for each, after a prompt of each of `tenants`."""
    knobs = Knobs(32, tbt_target=0.18, stretch_target=True, admission="on_demand")
    s = scripted(blocks=1000, knobs=knobs, warm_up=WarmUpTime(100, 0.1))
    for i, tenant in enumerate(tenants):
        s.scheduler.add([of(tenant, str(i), i, prompt=100)])
    for _ in range(4):
        assert s.select()
        s.finish(elapsed=0.001 * sum(s.batch.values()))
    return sum(s.batch.values())


@pytest.mark.parametrize(
    ("tenants", "brief"), [("a" * 9, False), ("ab" * 4, False), ("aaaaaaaab", True), ("abcdefgh", False)]
)
def test_prompts_have_less_time_while_a_tenant_with_few_requests_may_come(tenants: str, brief: bool) -> None:
    tokens = tokens_beside(tenants)
    assert (tokens < 150) is brief, tokens


def test_prompts_of_others_wait_while_guests_start_but_not_twice_in_a_row() -> None:
    s = scripted(batch=4)
    s.scheduler.add([of("flood", f"a{i}", i) for i in (1, 2)] + [of("flood", f"a{i}", i, new=1) for i in (3, 4)])
    s.step()
    s.scheduler.add([of("flood", "a5", 5), of("flood", "a6", 6), of("b", "b1", 9, new=1)])
    s.step()
    assert list(s.batch) == ["b1"], "a place stays free"
    s.scheduler.add([of("c", "c1", 10), of("flood", "a7", 7)])
    s.step()
    assert list(s.batch) == ["a1", "a2", "c1", "a5"]


def test_the_first_burst_on_an_idle_engine_fills_the_batch_at_once() -> None:
    s = scripted(batch=3)
    s.scheduler.add([of("flood", f"a{i}", i) for i in range(5)] + [of("b", "b1", 9)])
    s.step()
    assert list(s.batch) == ["a0", "a1", "a2"]


def test_a_paused_request_continues_while_blocks_are_short() -> None:
    s = scripted(blocks=6, knobs=Knobs(2, admission="on_demand"))
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2)])
    s.step()
    s.scheduler.add([of("b", "b1", 9)])
    while not (iteration := s.select()) or not iteration.released:
        s.finish()
    assert (iteration.released, list(iteration.scheduled)) == (["b1"], ["a1", "a2"])


def test_a_guest_keeps_its_place_with_an_iteration_in_flight() -> None:
    s, flights = scripted(batch=3, knobs=Knobs(3, lookahead=1)), deque[Iteration]()
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2), of("c", "c1", 3)])
    for step in range(8):
        if step == 1:
            s.scheduler.add([of("b", "b1", 9)])
        while iteration := s.select():
            flights.append(iteration)
        s.scheduler.update(s.result_of(flights.popleft()))
        assert step < 2 or "b1" in flights[0].scheduled


def test_a_guest_takes_no_place_of_an_earlier_class() -> None:
    s = scripted(batch=2, knobs=Knobs(2, order="priority"))
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2)])
    s.step()
    s.scheduler.add([of("b", "b1", 0.5, priority=1)])
    s.step()
    assert list(s.batch) == ["a1", "a2"]


def test_a_guest_that_is_not_admitted_takes_no_blocks_of_lines() -> None:
    s = scripted(blocks=17, batch=2, knobs=Knobs(2, order="priority"))
    s.scheduler.add([of("c", "line", BEHIND, priority=BATCH_CLASS)])
    s.step()
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2)])
    s.step()
    s.scheduler.add([of("b", "b1", 0.5, priority=1)])
    s.step()
    assert list(s.batch) == ["a1", "a2"]
    assert s.iteration is not None
    assert not s.iteration.released, "five blocks for the line, five for each running request, two are free"
