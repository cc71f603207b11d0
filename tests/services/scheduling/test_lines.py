"""Lines of batches run if no other request is here, and give up all they hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from math import inf

import pytest

from services.messages import Claim
from services.pool.limits import BEHIND
from services.requests import BATCH_CLASS
from services.scheduling import Knobs, RequestLevelScheduler
from services.scheduling.budget import LEAST_CHUNK
from services.scheduling.last_class import CLAIM_INTERVAL, LULL, TARGET, LineBudget
from tests.services.scheduling.scripted import Script, claim, scripted
from tests.services.scheduling.test_token_budget import known

ORDERS = pytest.mark.parametrize("order", ["fcfs", "priority"])


def line(number: int, prompt: int = 4, new: int = 20) -> Claim:
    return replace(claim(f"line{number}", BEHIND + number, prompt, new), priority=BATCH_CLASS)


def world(order: str = "fcfs", blocks: int = 100, batch: int = 4, admission: str = "reserve") -> Script:
    """Create a scheduler whose clock advances by a second, which is longer than LULL, each time it is read."""
    knobs = Knobs(batch, admission=admission, order=order)  # type: ignore[arg-type]
    return scripted(blocks=blocks, knobs=knobs, now=partial(next, count(1.0)))


@ORDERS
def test_lines_are_paused_while_another_request_is_here(order: str) -> None:
    s = world(order)
    s.scheduler.add([line(0), line(1)])
    s.step()
    assert s.scheduler.claim_interval() == CLAIM_INTERVAL
    s.scheduler.add([claim("a", 1, 4, 2)])
    assert s.scheduler.claim_interval() == inf
    batches = []
    for _ in range(2):
        s.step()
        batches.append(dict(s.batch))
    assert s.select() is None
    s.step()
    batches.append(dict(s.batch))
    assert batches == [{"a": 4}, {"a": 1}, {"line0": 1, "line1": 1}]
    assert "vllm:num_preemptions" not in s.scheduler.take_counters()


@ORDERS
def test_there_is_room_for_a_request_although_lines_have_all_places(order: str) -> None:
    s = world(order, batch=2)
    s.scheduler.add([replace(line(0), tenant="c"), line(1)])
    for _ in range(2):  # while they wait, and while they run
        room = s.scheduler.room()
        assert (room.requests, room.yields) == (0, [(BATCH_CLASS, 2, 12)])
        s.step()
    s.scheduler.add([claim("a", 1, 4, 9), claim("b", 2, 4, 9)])
    assert s.scheduler.room().requests == -2
    s.step()
    assert list(s.batch) == ["a", "b"]
    room = s.scheduler.room()
    assert (room.guests, room.tenants) == (1, ["default"]), "the tenant of a line can come as a guest"


@ORDERS
def test_a_request_takes_the_blocks_of_the_latest_lines(order: str) -> None:
    s = world(order, blocks=12)
    s.scheduler.add([line(0), line(1)])  # six blocks each, which are all
    s.step()
    s.scheduler.add([claim("a", 1, 4, 4)])
    s.step()
    assert list(s.batch) == ["a"]
    assert s.iteration is not None
    assert s.iteration.released == ["line1"]
    while s.select() or s.select():  # the first one after "a" is None
        s.finish()
    ends = {commit.id: commit.end for commit in s.commits if commit.end}
    assert {"a", "line0", "line1"} == set(ends)
    tokens = {id: sum(len(c.tokens) for c in s.commits if c.id == id) for id in ends}
    assert tokens == {"a": 4, "line0": 20, "line1": 20}
    assert s.scheduler.blocks.held == 0


@ORDERS
def test_lines_that_end_with_the_iteration_in_flight_count_once_as_room(order: str) -> None:
    s = world(order, batch=2)
    s.scheduler.add([line(0, new=1), line(1, new=1)])
    s.select()
    room = s.scheduler.room()
    assert (room.requests, room.blocks, room.yields) == (2, 100, [])


@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
def test_a_late_request_takes_blocks_of_lines_and_not_of_others(admission: str) -> None:
    s = world(blocks=9, batch=1, admission=admission)
    s.scheduler.add([line(0, prompt=16, new=4)])
    s.step()
    s.scheduler.add([claim("late", 30, 9, 3)])
    s.step()
    assert list(s.batch) == ["late"]
    s.scheduler.add([claim("head", 10, 12, 4)])
    iteration = s.select()
    assert iteration is not None
    assert (list(s.batch), iteration.released) == (["head"], ["line0"])


def test_a_late_request_takes_the_blocks_of_lines_and_of_others_if_it_needs_both() -> None:
    s = world(blocks=9, admission="on_demand")
    s.scheduler.add([line(0, prompt=14, new=2)])
    s.step()
    s.scheduler.add([claim("late", 30, 13, 3)])
    s.step()
    s.scheduler.add([claim("head", 10, 31, 1)])
    iteration = s.select()
    assert iteration is not None
    assert (list(s.batch), iteration.released) == (["head"], ["line0", "late"])


def test_blocks_that_lines_lack_or_give_up_stop_no_other_request() -> None:
    s = world(blocks=9, admission="on_demand")
    s.scheduler.add([line(0), line(1)])
    while not (iteration := s.select()) or not iteration.released:
        s.finish()
    s.finish()
    s.scheduler.add([claim("a", 1, 4, 16)])
    s.step()
    assert s.scheduler.room().requests == 1
    s.scheduler.add([claim("b", 2, 4, 16)])
    while not (iteration := s.select()) or not iteration.released:
        s.finish()
    assert (iteration.released, list(iteration.scheduled)) == (["line0"], ["a", "b"])
    assert s.scheduler.room().guests == 1


@pytest.mark.parametrize(
    ("target", "stretch", "law", "chunk", "decodes"),
    [
        (None, False, (0.01, 1e-3, 0.0), 40, 40),
        (None, False, (1.0, 0.01, 0.0), 102, 90),  # the least share of a slow engine
        (0.02, False, (0.01, 1e-3, 0.0), LEAST_CHUNK, 10),
        (0.02, True, (0.01, 1e-3, 0.0), 40, 40),
        (0.02, False, (1.0, 0.01, 0.0), LEAST_CHUNK, 1),
    ],
)
def test_the_target_of_lines(
    target: float | None, stretch: bool, law: tuple[float, float, float], chunk: int, decodes: int
) -> None:
    budget = LineBudget(Knobs(90, tbt_target=target, stretch_target=stretch), known(*law))
    assert budget.max_decodes(90) == pytest.approx(decodes, abs=1)
    assert budget.take_chunk(0, 1000) == pytest.approx(chunk, abs=2)


def test_an_iteration_of_lines_is_short() -> None:
    """A request that arrives waits for its end. An iteration costs 10 ms, and 1 ms for each token."""
    s = scripted(blocks=2000, length=1000, knobs=Knobs(32))
    s.scheduler.add([line(number, prompt=300, new=200) for number in range(32)])
    seconds = []
    for _ in range(500):
        s.select()
        seconds.append(0.01 + 0.001 * sum(s.batch.values()))
        s.finish(elapsed=seconds[-1])
    assert max(seconds[20:]) <= TARGET + 0.016 + 0.001  # the least chunk of a prompt is 16 tokens
    assert min(seconds[20:100]) >= TARGET / 2


def test_an_iteration_of_other_requests_is_not_bounded() -> None:
    s = scripted(blocks=2000, length=1000, knobs=Knobs(32))
    s.scheduler.add([line(0)])
    s.step(elapsed=0.5)
    s.scheduler.add([claim("a", 1, 900, 9)])
    s.step()
    assert s.batch == {"a": 900}


def test_lines_wait_a_while_for_other_requests_to_follow() -> None:
    now = 1.0
    s = scripted(knobs=Knobs(4), now=lambda: now)
    s.scheduler.add([line(0)])
    assert s.scheduler.wait_time() == 0.0
    s.step()
    s.scheduler.add([claim("a", 1, 4, 1)])
    assert s.scheduler.wait_time() == inf
    s.step()
    assert s.batch == {"a": 4}
    assert s.scheduler.wait_time() == pytest.approx(LULL)
    assert s.select() is None
    now += LULL / 2
    assert s.select() is None
    assert s.scheduler.wait_time() == pytest.approx(LULL / 2)
    now += LULL
    assert s.scheduler.wait_time() == 0.0
    s.step()
    assert s.batch == {"line0": 1}


def test_lines_wait_from_the_end_of_an_iteration_that_took_longer_than_they_wait() -> None:
    now = 1.0
    s = scripted(knobs=Knobs(4), now=lambda: now)
    s.scheduler.add([line(0), claim("a", 1, 4, 1)])
    s.select()
    now += 2 * LULL
    s.finish()
    assert s.select() is None
    assert s.scheduler.wait_time() == pytest.approx(LULL)


def test_a_suspect_line_waits_like_other_lines() -> None:
    s = world()
    s.scheduler.add([replace(line(0), strikes=2), claim("a", 1, 4, 2)])
    s.step()
    assert list(s.batch) == ["a"]
    s.step()
    assert s.select() is None
    s.step()
    assert list(s.batch) == ["line0"]


def test_a_fixed_batch_of_lines_runs_to_its_end() -> None:
    s = scripted(RequestLevelScheduler, knobs=Knobs(2))
    s.scheduler.add([line(0, new=3)])
    s.step()
    s.scheduler.add([claim("a", 1, 4, 2)])
    s.step()
    assert list(s.batch) == ["line0"]
