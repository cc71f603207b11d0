"""A scheduler keeps the order in which tenants had their turns: who came in later passes nobody of another tenant."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from services.messages import Claim, Iteration
from services.pool.limits import BEHIND
from services.requests import BATCH_CLASS
from services.scheduling import Knobs
from tests.services.scheduling.scripted import EOS, claim, scripted


def of(tenant: str, id: str, rank: float, prompt: int = 4, new: int = 16, priority: int = 0) -> Claim:
    return replace(claim(id, rank, prompt, new), tenant=tenant, priority=priority)


def test_a_flood_that_came_earlier_takes_no_place_of_who_had_its_turn() -> None:
    s = scripted(batch=2)
    s.scheduler.add([of("flood", "a1", 1), of("b", "b1", 9)])
    s.step()
    s.scheduler.add([of("flood", "a2", 2)])
    s.step()
    assert list(s.batch) == ["a1", "b1"]


def test_nor_its_blocks() -> None:
    s = scripted(blocks=6, knobs=Knobs(3, admission="on_demand"))
    s.scheduler.add([of("flood", "a1", 1), of("b", "b1", 9)])
    s.step()
    s.scheduler.add([of("flood", "a2", 2)])
    for _ in range(6):
        s.step()
    assert "b1" in s.batch
    assert "a2" not in s.batch


def test_one_tenant_s_order_is_by_rank() -> None:
    s = scripted(batch=2)
    s.scheduler.add([of("a", "a1", 1), of("a", "a9", 9)])
    s.step()
    s.scheduler.add([of("a", "a2", 2)])
    s.step()
    assert list(s.batch) == ["a1", "a2"]


def test_an_earlier_class_passes_other_tenants_too() -> None:
    s = scripted(batch=2, knobs=Knobs(2, order="priority"))
    s.scheduler.add([of("a", "a1", 9, priority=1), of("a", "a2", 10, priority=1)])
    s.scheduler.add([of("b", "b1", 5)])
    s.step()
    assert list(s.batch) == ["b1", "a1"]


@pytest.mark.parametrize("tenants", ["aaaa", "abab"])
def test_of_equal_ranks_who_was_sent_already_is_not_preempted(tenants: str) -> None:
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


def test_a_guest_has_the_place_of_the_last_of_who_has_most() -> None:
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
    assert s.batch == {"a1": 1, "a2": 1, "c1": 1}, "who paused goes on where it was"


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


def test_a_guest_that_is_not_let_in_takes_no_blocks_of_lines() -> None:
    s = scripted(blocks=17, batch=2, knobs=Knobs(2, order="priority"))
    s.scheduler.add([of("c", "line", BEHIND, priority=BATCH_CLASS)])
    s.step()
    s.scheduler.add([of("flood", "a1", 1), of("flood", "a2", 2)])
    s.step()
    s.scheduler.add([of("b", "b1", 0.5, priority=1)])
    s.step()
    assert list(s.batch) == ["a1", "a2"]
    assert s.iteration is not None
    assert not s.iteration.released, "five blocks for the line, twice five for those that run, two free"
