"""Requests are ordered by rank; later classes give way only if the first token of an earlier one would be late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.messages import Claim, Room
from services.scheduling import Knobs
from services.scheduling.budget import Budget
from tests.services.scheduling.scripted import Script, claim, scripted
from tests.services.scheduling.test_token_budget import known


class Clocked:
    """A scheduler with two places, whose clock is set by the test. Iterations take 0.1 s."""

    def __init__(self, blocks: int = 100, batch: int = 2, **knobs: object) -> None:
        self.now = 0.0
        settings = Knobs(batch, order="priority", **knobs)  # type: ignore[arg-type]
        self.s: Script = scripted(blocks=blocks, knobs=settings, now=lambda: self.now)

    def step(self) -> list[str]:
        self.s.step(elapsed=0.1)
        self.now += 0.1
        return list(self.s.batch)

    def preemptions(self) -> float:
        """Return the number of preemptions since the last call."""
        return self.s.scheduler.take_counters().get("vllm:num_preemptions", 0)


class Priced:
    """A scheduler with four places and an engine whose iterations take exactly fixed + per_token + per_pair seconds."""

    def __init__(self, law: tuple[float, float, float], **knobs: object) -> None:
        self.law = law
        self.now = 0.0
        settings = Knobs(4, order="priority", **knobs)  # type: ignore[arg-type]
        self.s: Script = scripted(blocks=1000, length=1000, knobs=settings, now=lambda: self.now)
        self.computed: dict[str, int] = {}

    def step(self) -> float:
        """Run one iteration and return its seconds."""
        self.s.select()
        fixed, per_token, per_pair = self.law
        pairs = sum(n * self.computed.get(id, 0) + n * (n + 1) // 2 for id, n in self.s.batch.items())
        for id, n in self.s.batch.items():
            self.computed[id] = self.computed.get(id, 0) + n
        seconds = fixed + per_token * sum(self.s.batch.values()) + per_pair * pairs
        self.s.finish(elapsed=seconds)
        self.now += seconds
        return seconds

    def running(self, count: int) -> None:
        """Start `count` requests of a later class with prompts of different lengths, so that the cost is known."""
        for i in range(count):
            self.s.scheduler.add([replace(claim(f"r{i}", 1000 + i, 20 * 3**i, 900), priority=1)])
            for _ in range(40):
                self.step()

    def first_token(self, id: str) -> float:
        """Return the seconds from the first iteration of a request to its first token."""
        seconds = 0.0
        while not any(commit.id == id for commit in self.s.commits):
            taken = self.step()
            seconds += taken if id in self.s.batch else 0.0
        return seconds


def of(id: str, rank: float, priority: int = 0, ttft: float = 0.0, new: int = 20) -> Claim:
    return replace(claim(id, rank, 4, new), priority=priority, ttft=ttft)


def test_waiting_requests_start_by_rank() -> None:
    world = Clocked()
    world.s.scheduler.add([of("late", 9), of("b", 2), of("a", 1)])
    assert world.step() == ["a", "b"]


def test_a_later_class_gives_way_only_when_the_target_is_at_risk() -> None:
    world = Clocked()
    world.s.scheduler.add([of("x", 60, priority=1), of("y", 61, priority=1)])
    assert world.step() == ["x", "y"]
    world.s.scheduler.add([of("urgent", 1, ttft=0.65, new=2)])
    batches = [sorted(world.step()) for _ in range(8)]
    # y has the larger rank. The request takes one iteration of 0.1 s and starts in the last that begins at least two
    # others before it is due: in the fifth
    assert batches == [["x", "y"]] * 4 + [["urgent", "x"]] * 2 + [["x", "y"]] * 2
    assert world.s.scheduler.gauges()["paused"] == 0


@pytest.mark.parametrize(("waited", "output", "first"), [(8.9, [], "urgent"), (0.0, [], "x"), (8.9, [7], "x")])
def test_the_target_counts_from_the_arrival_and_ends_with_the_first_token(
    waited: float, output: list[int], first: str
) -> None:
    world = Clocked(batch=1)
    world.s.scheduler.add([of("x", 60, priority=1)])
    world.step()
    world.s.scheduler.add([replace(of("urgent", 1, ttft=9.0), waited=waited, output=output)])
    assert world.step() == [first]


def test_a_paused_request_keeps_its_blocks_and_tokens() -> None:
    world = Clocked(blocks=8, batch=1)
    world.s.scheduler.add([of("x", 60, priority=1, new=6)])
    world.step()
    world.s.scheduler.add([of("urgent", 1, ttft=0.001, new=2)])
    assert world.step() == ["urgent"]
    assert world.s.scheduler.room().blocks == 8 - 3 - 2
    world.s.scheduler.add([of("large", 2, new=24)])  # x continues, although this one goes first and lacks blocks
    assert [world.step() for _ in range(2)] == [["urgent"], ["x"]]
    assert world.s.batch == {"x": 1}
    assert world.preemptions() == 0


def test_the_same_class_and_earlier_ones_do_not_give_way() -> None:
    world = Clocked()
    world.s.scheduler.add([of("x", 5), of("y", -50, priority=-1)])
    world.step()
    world.s.scheduler.add([of("late", 1, ttft=0.001)])
    assert world.step() == ["y", "x"]


@pytest.mark.parametrize("rank", [60, 70])
def test_a_request_of_a_later_class_that_has_waited_long_does_not_give_way(rank: float) -> None:
    """Because of ageing, its rank is not larger than that of requests that arrive."""
    world = Clocked(batch=1)
    world.s.scheduler.add([of("old", 60, priority=1)])
    world.step()
    world.s.scheduler.add([of("new", rank, ttft=0.001)])
    assert world.step() == ["old"]


def test_without_reservation_blocks_are_taken_too() -> None:
    world = Clocked(blocks=3, admission="on_demand")
    world.s.scheduler.add([of("x", 60, priority=1, new=8)])
    for _ in range(5):
        world.step()
    urgent = replace(claim("urgent", 1, 8, 2), ttft=0.001)
    world.s.scheduler.add([urgent])
    assert world.step() == ["urgent"]
    assert world.preemptions() == 1


def test_no_more_requests_give_way_than_are_needed() -> None:
    world = Clocked(blocks=6, batch=4, admission="on_demand")
    world.s.scheduler.add([of("x", 60, priority=1), of("y", 61, priority=1)])
    while world.s.scheduler.blocks.free:
        world.step()
    world.s.scheduler.add([of("urgent", 1, ttft=0.001)])
    assert world.step() == ["x", "urgent"]


def short_of_blocks() -> Clocked:
    """x and y of a later class filled 6 blocks, and y was preempted. x holds 4 blocks, 2 are free."""
    world = Clocked(blocks=6, batch=4, admission="on_demand")
    world.s.scheduler.add([of("x", 60, priority=1, new=20), of("y", 61, priority=1, new=20)])
    batches = [world.step() for _ in range(10)]
    assert batches == [["x", "y"]] * 9 + [["x"]]
    assert world.preemptions() == 1
    return world


def test_while_blocks_are_short_there_is_still_room_for_earlier_classes() -> None:
    world = short_of_blocks()
    # y waits for 4 blocks and one is kept for x: 2 - 4 - 1; the free place is not for x's class
    assert world.s.scheduler.room() == Room(0, -3, 4, whole=False, yields=[(1, 1, 4)], longest=24)
    world.s.scheduler.add([of("urgent", 1, ttft=9.0)])
    assert world.s.scheduler.room() == Room(0, -4, 4, whole=False, yields=[(1, 1, 4)], longest=24)
    world.s.scheduler.add([of("b", 2), of("c", 3)])
    assert world.s.scheduler.room().requests == -1


def test_while_blocks_are_short_only_a_request_at_risk_takes_them() -> None:
    world = short_of_blocks()
    urgent = replace(claim("urgent", 1, 8, 2), ttft=1.0)
    world.s.scheduler.add([urgent])
    batches = [world.step() for _ in range(12)]
    start = batches.index(["urgent"])  # it needs 2 blocks, and one is kept for x: x is preempted
    assert 4 <= start <= 8
    assert batches[:start] == [["x"]] * start
    assert batches[start:] == [["urgent"]] * 2 + [["x"]] * (10 - start)  # after its end, the next one by rank starts
    assert world.preemptions() == 1


def test_while_blocks_are_short_no_request_is_preempted_in_vain() -> None:
    world = short_of_blocks()
    world.s.scheduler.add([of("urgent", 1, ttft=0.001, new=3)])  # one block for it and one for x are free
    assert [world.step() for _ in range(3)] == [["x", "urgent"], ["urgent", "x"], ["urgent", "x"]]
    assert world.preemptions() == 0


def test_a_preempted_request_does_not_start_between_urgent_ones() -> None:
    """x holds 4 of 6 blocks; each urgent request needs 2, then 3."""
    world = short_of_blocks()
    batches = []
    for i in range(3):
        world.s.scheduler.add([replace(claim(f"u{i}", 1 + i, 8, 4), ttft=0.001)])
        batches.append(world.step())
    batches += [world.step() for _ in range(5)]
    assert batches == [["u0"]] * 4 + [["u1", "u2"]] * 4  # u0 does not give way to u1
    assert world.preemptions() == 1
    assert world.step() == ["x"]


def test_with_reservation_no_request_is_paused_in_vain() -> None:
    world = Clocked(blocks=6)
    world.s.scheduler.add([of("x", 60, priority=1, new=20)])
    world.step()
    world.s.scheduler.add([of("urgent", 1, ttft=0.001)])
    assert world.step() == ["x"]


def test_room_contains_what_each_class_would_give_up() -> None:
    world = Clocked(blocks=50)
    world.s.scheduler.add([of("x", 60, priority=1), of("y", 61, priority=2)])
    world.step()
    assert world.s.scheduler.room() == Room(
        0, 38, 4, yields=[(1, 1, 0), (2, 1, 0)], longest=200, guests=1, tenants=["default"]
    )
    world.s.scheduler.add([of("urgent", 1)])
    assert world.s.scheduler.room().requests == -1
    world = Clocked()
    world.s.scheduler.add([of("x", 60, priority=1, new=1), of("y", 61, priority=1)])
    world.s.select()
    assert world.s.scheduler.room().yields == [(1, 1, 0)], "x ends with this iteration and counts as free"
    world = Clocked(blocks=50, admission="on_demand")
    world.s.scheduler.add([of("x", 60, priority=1), of("y", 61, priority=1)])
    world.step()
    assert world.s.scheduler.room() == Room(
        0, 46, 4, whole=False, yields=[(1, 2, 2)], longest=200, guests=1, tenants=["default"]
    )


LAWS = [(0.01, 1e-4, 0.0), (0.001, 1e-3, 0.0), (0.01, 1e-4, 1e-6)]
BUDGETS: list[dict[str, object]] = [{}, {"token_budget": 8}, {"tbt_target": 0.03}, {"tbt_target": 0.001}]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("knobs", BUDGETS)
@pytest.mark.parametrize("prompt", [1, 9, 250])
def test_the_time_of_a_prompt_beside_others_is_estimated(
    law: tuple[float, float, float], knobs: dict[str, object], prompt: int
) -> None:
    world = Priced(law, **knobs)
    world.running(3)
    contexts = [world.computed[f"r{i}"] for i in range(3)]
    budget = Budget(world.s.scheduler.knobs, known(*law))
    budget.add_decodes(3, sum(contexts))
    estimated = budget.prompt_seconds(prompt, running=3)
    world.s.scheduler.add([replace(claim("urgent", 1, prompt, 2), ttft=1.0)])
    assert estimated == pytest.approx(world.first_token("urgent"), rel=0.15)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("knobs", BUDGETS)
def test_an_urgent_request_starts_in_time_and_not_long_before(
    law: tuple[float, float, float], knobs: dict[str, object]
) -> None:
    world = Priced(law, **knobs)
    world.running(4)
    one = world.step()
    budget = Budget(world.s.scheduler.knobs, known(*law))
    budget.add_decodes(3, 3 * 180)
    needed = budget.prompt_seconds(100, running=3)
    due = world.now + 3 * needed
    world.s.scheduler.add([replace(claim("urgent", 1, 100, 2), ttft=3 * needed)])
    world.first_token("urgent")
    assert 0 <= due - world.now <= 4 * one + 0.2 * needed
