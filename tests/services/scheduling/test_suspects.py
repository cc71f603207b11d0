"""A request under which engines died runs alone, until it has shown that it does not kill them."""

from services.messages import Commit
from services.scheduling import RequestLevelScheduler
from tests.services.scheduling.scripted import WORD, Script, claim, scripted


def batches(s: Script, count: int) -> list[list[str]]:
    made = []
    for _ in range(count):
        s.step()
        made.append(list(s.batch))
    return made


def test_suspects_run_alone_one_after_the_other_the_earliest_first_and_then_with_all() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9), claim("c", 3, 3, 9, strikes=2), claim("b", 2, 3, 9, strikes=2)])
    assert batches(s, 4) == [["b"], ["c"], ["b", "c", "a"], ["a", "b", "c"]]


def test_one_strike_is_no_reason() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9, strikes=1), claim("b", 2, 3, 9)])
    assert batches(s, 1) == [["a", "b"]]


def test_those_that_run_pause_for_a_suspect_and_lose_nothing() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9)])
    s.step()
    s.scheduler.add([claim("b", 2, 3, 9, output=(WORD,), strikes=2)])
    assert s.step() == [Commit("b", 1, [WORD])]
    assert s.batch == {"b": 4}
    assert s.step() == [Commit("a", 1, [WORD]), Commit("b", 2, [WORD])]


def test_a_suspect_that_fails_by_itself_makes_way_for_the_next() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9, strikes=2), claim("b", 2, 3, 9, strikes=2)])
    s.step(failed={"a": "no"})
    s.step()
    assert list(s.batch) == ["b"]


def test_a_suspect_waits_for_blocks_while_others_end_and_nobody_passes_it() -> None:
    s = scripted(blocks=4)
    s.scheduler.add([claim("a", 1, 4, 4)])
    s.step()
    s.scheduler.add([claim("b", 2, 8, 4, strikes=2), claim("c", 3, 1, 1)])
    assert batches(s, 5) == [["a"], ["a"], ["a"], ["b"], ["b", "c"]]


def test_a_suspect_does_not_break_into_a_fixed_batch() -> None:
    s = scripted(RequestLevelScheduler)
    s.scheduler.add([claim("a", 1, 3, 2)])
    s.step()
    s.scheduler.add([claim("b", 2, 3, 2, strikes=2), claim("c", 3, 3, 1)])
    assert batches(s, 4) == [["a"], ["b"], ["b"], ["c"]]
