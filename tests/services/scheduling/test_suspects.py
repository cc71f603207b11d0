"""A request that was in flight when engines died runs alone until it brings a token."""

from services.messages import Commit
from services.scheduling import Knobs, RequestLevelScheduler
from tests.services.scheduling.scripted import WORD, Script, claim, scripted


def batches(s: Script, count: int) -> list[list[str]]:
    made = []
    for _ in range(count):
        s.step()
        made.append(list(s.batch))
    return made


def test_suspects_run_alone_one_after_the_other_and_then_with_the_rest() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9), claim("c", 3, 3, 9, strikes=2), claim("b", 2, 3, 9, strikes=2)])
    assert batches(s, 4) == [["b"], ["c"], ["b", "c", "a"], ["a", "b", "c"]]


def test_a_request_with_one_strike_is_no_suspect() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9, strikes=1), claim("b", 2, 3, 9)])
    assert batches(s, 1) == [["a", "b"]]


def test_running_requests_are_paused_for_a_suspect() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9)])
    s.step()
    s.scheduler.add([claim("b", 2, 3, 9, output=(WORD,), strikes=2)])
    assert s.step() == [Commit("b", 1, [WORD])]
    assert s.batch == {"b": 4}
    assert s.step() == [Commit("a", 1, [WORD]), Commit("b", 2, [WORD])]


def test_after_a_suspect_has_failed_the_next_one_runs() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9, strikes=2), claim("b", 2, 3, 9, strikes=2)])
    s.step(failed={"a": "no"})
    s.step()
    assert list(s.batch) == ["b"]


def test_a_suspect_waits_for_blocks_and_is_not_overtaken() -> None:
    s = scripted(blocks=4)
    s.scheduler.add([claim("a", 1, 4, 4)])
    s.step()
    s.scheduler.add([claim("b", 2, 8, 4, strikes=2), claim("c", 3, 1, 1)])
    assert batches(s, 5) == [["a"], ["a"], ["a"], ["b"], ["b", "c"]]


def test_a_suspect_that_has_started_goes_on_before_an_earlier_one() -> None:
    s = scripted(knobs=Knobs(4, token_budget=4))
    s.scheduler.add([claim("b", 2, 10, 9, strikes=2)])
    s.step()
    s.scheduler.add([claim("a", 1, 3, 9, strikes=2)])
    assert batches(s, 3) == [["b"], ["b"], ["a"]]


def test_a_suspect_does_not_interrupt_a_fixed_batch() -> None:
    s = scripted(RequestLevelScheduler)
    s.scheduler.add([claim("a", 1, 3, 2)])
    s.step()
    s.scheduler.add([claim("b", 2, 3, 2, strikes=2), claim("c", 3, 3, 1)])
    assert batches(s, 4) == [["a"], ["b"], ["b"], ["c"]]
