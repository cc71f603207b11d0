"""Cancellations and failures of requests in every state."""

from time import time

from services.messages import Commit, End, Room
from services.requests import FinishReason
from tests.services.scheduling.scripted import EOS, WORD, claim, scripted

CANCELLED = End(FinishReason.CANCELLED)
LENGTH = End(FinishReason.LENGTH)


def test_a_waiting_request_that_is_cancelled_is_never_sent_to_the_engine() -> None:
    s = scripted(batch=1)
    s.scheduler.add([claim("a", 1, 3, 2), claim("b", 2, 3, 2)])
    s.step()
    s.scheduler.cancel(["b"])
    assert s.scheduler.take_commits() == [Commit("b", 0, [], end=CANCELLED)]
    s.step()
    assert s.select() is None
    s.scheduler.add([claim("c", 3, 3, 1)])
    iteration = s.select()
    assert iteration is not None
    assert iteration.released == ["a"]


def test_cancel_in_flight_drops_the_token_and_frees_the_blocks_at_once() -> None:
    s = scripted(blocks=2)
    s.scheduler.add([claim("a", 1, 4, 4)])
    s.step()
    s.select()
    s.scheduler.cancel(["a"])
    assert s.scheduler.blocks.held == 0
    assert s.finish({"a": 9}) == [Commit("a", 1, [], end=CANCELLED)]
    s.scheduler.add([claim("b", 2, 4, 4)])
    iteration = s.select()
    assert iteration is not None
    assert (iteration.released, iteration.scheduled) == (["a"], {"b": 4})


def test_cancel_between_iterations_keeps_the_tokens_not_yet_taken() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 5)])
    iteration = s.select()
    assert iteration is not None
    s.scheduler.update(s.result_of(iteration, {"a": 11}))
    s.scheduler.cancel(["a"])
    assert s.scheduler.take_commits() == [Commit("a", 0, [11], end=CANCELLED)]


def test_a_cancellation_that_comes_after_the_end_changes_nothing() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 5)])
    before = time()
    s.step({"a": EOS})
    assert before <= s.commits[0].end.at <= time()  # type: ignore[union-attr]
    s.scheduler.cancel(["a", "never heard of"])
    s.scheduler.cancel(["a"])
    assert s.commits == [Commit("a", 0, [EOS], end=End(FinishReason.STOP))]
    assert not s.scheduler.has_commits()
    assert s.scheduler.room() == Room(8, 100, 4, longest=200)  # the length, which is less than the KV slots


def test_a_cancellation_can_be_repeated() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 5)])
    s.select()
    s.scheduler.cancel(["a"])
    s.scheduler.cancel(["a"])
    assert s.finish() == [Commit("a", 0, [], end=CANCELLED)]


def test_a_failed_request_ends_alone_and_is_released() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 2), claim("b", 2, 3, 2)])
    assert s.step(failed={"a": "NaN in the logits"}) == [
        Commit("a", 0, [], end=End(FinishReason.ERROR, error="NaN in the logits")),
        Commit("b", 0, [WORD]),
    ]
    assert s.scheduler.blocks.held == 2
    iteration = s.select()
    assert iteration is not None
    assert (iteration.released, iteration.scheduled) == (["a"], {"b": 1})
    assert s.finish() == [Commit("b", 1, [WORD], end=LENGTH)]


def test_a_failure_keeps_the_tokens_before_it() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 4)])
    iteration = s.select()
    assert iteration is not None
    s.scheduler.update(s.result_of(iteration, {"a": 11}))
    assert s.step(failed={"a": "no"}) == [Commit("a", 0, [11], end=End(FinishReason.ERROR, error="no"))]


def test_cancelled_and_failed_in_the_same_iteration() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 4), claim("b", 2, 3, 4)])
    s.select()
    s.scheduler.cancel(["a"])
    commits = s.finish(failed={"a": "no"})
    assert Commit("a", 0, [], end=CANCELLED) in commits
    iteration = s.select()
    assert iteration is not None
    assert iteration.released == ["a"]
