"""Several iterations in flight: lines 9 and 10 of Algorithm 1, and lookahead."""

from services.messages import Commit, End, Iteration
from services.requests import FinishReason
from services.scheduling import Knobs
from tests.services.scheduling.scripted import EOS, Script, claim, scripted


def scheduled(iteration: Iteration | None) -> dict[str, int] | None:
    return iteration.scheduled if iteration else None


def land(s: Script, iteration: Iteration | None, tokens: dict[str, int] | None = None) -> list[Commit]:
    assert iteration is not None
    s.scheduler.update(s.result_of(iteration, tokens))
    return s.scheduler.take_commits()


def test_there_are_as_many_batches_as_stages_and_no_request_is_in_two() -> None:
    s = scripted(knobs=Knobs(2, batches_in_flight=3))
    s.scheduler.add([claim(id, rank, 2, 3) for rank, id in enumerate("abcde")])
    first, second, third = s.select(), s.select(), s.select()
    assert [scheduled(i) for i in (first, second, third)] == [{"a": 2, "b": 2}, {"c": 2, "d": 2}, {"e": 2}]
    assert s.select() is None
    land(s, first)
    assert scheduled(s.select()) == {"a": 1, "b": 1}
    land(s, second)
    assert scheduled(s.select()) == {"c": 1, "d": 1}


def test_room_counts_the_places_of_all_batches() -> None:
    s = scripted(knobs=Knobs(2, batches_in_flight=3))
    assert s.scheduler.room().requests == 6


def test_other_requests_do_not_wait_for_one_in_flight() -> None:
    s = scripted(knobs=Knobs(1, batches_in_flight=2))
    s.scheduler.add([claim("a", 1, 2, 3)])
    assert scheduled(s.select()) == {"a": 2}
    assert s.select() is None


def test_lookahead_sends_requests_again_up_to_their_length() -> None:
    s = scripted(knobs=Knobs(2, lookahead=1))
    s.scheduler.add([claim("a", 1, 2, 3), claim("b", 2, 2, 1)])
    first, second = s.select(), s.select()
    assert (scheduled(first), scheduled(second)) == ({"a": 2, "b": 2}, {"a": 1})
    assert s.select() is None
    assert land(s, first, {"a": 11, "b": 12}) == [
        Commit("a", 0, [11]),
        Commit("b", 0, [12], end=End(FinishReason.LENGTH)),
    ]
    third = s.select()
    assert scheduled(third) == {"a": 1}
    assert s.select() is None
    assert land(s, second, {"a": 13}) == [Commit("a", 1, [13])]
    assert s.select() is None  # its last token is in flight
    assert land(s, third, {"a": 14}) == [Commit("a", 2, [14], end=End(FinishReason.LENGTH))]


def test_the_token_sampled_for_a_finished_request_is_dropped() -> None:
    s = scripted(knobs=Knobs(1, lookahead=1))
    s.scheduler.add([claim("a", 1, 2, 9), claim("b", 2, 2, 9)])
    first, second = s.select(), s.select()
    assert land(s, first, {"a": EOS}) == [Commit("a", 0, [EOS], end=End(FinishReason.STOP))]
    third = s.select()
    assert third is not None
    assert (third.scheduled, third.released) == ({"b": 2}, ["a"])
    assert land(s, second, {"a": 99}) == []
    assert land(s, third, {"b": 5}) == [Commit("b", 0, [5])]


def test_a_suspect_waits_until_nothing_is_in_flight_and_nothing_joins_it() -> None:
    s = scripted(knobs=Knobs(4, lookahead=1))
    s.scheduler.add([claim("a", 1, 2, 9)])
    first, second = s.select(), s.select()
    s.scheduler.add([claim("x", 2, 2, 9, strikes=2)])
    land(s, first)
    assert s.select() is None
    land(s, second)
    alone = s.select()
    assert scheduled(alone) == {"x": 2}
    assert s.select() is None
    land(s, alone)
    assert scheduled(s.select()) == {"a": 1, "x": 1}


def test_a_request_that_is_claimed_again_while_in_flight_starts_again() -> None:
    s = scripted(knobs=Knobs(2, lookahead=1))
    s.scheduler.add([claim("a", 1, 2, 9)])
    first, second = s.select(), s.select()
    s.scheduler.drop(["a"])
    s.scheduler.add([claim("a", 1, 2, 9)])
    land(s, first)
    third = s.select()
    assert third is not None
    assert (third.scheduled, third.released) == ({"a": 2}, ["a"])
    assert land(s, second) == []
    assert land(s, third, {"a": 5}) == [Commit("a", 0, [5])]
