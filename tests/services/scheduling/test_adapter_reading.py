"""Requests whose adapter the engine has to read first, while others run."""

from __future__ import annotations

from dataclasses import replace

from services.scheduling.reading import AT_ONCE, LONGEST
from tests.services.scheduling.scripted import Script, claim, scripted


def finish(s: Script, *adapters: str) -> None:
    """The engine has these in memory now."""
    assert s.iteration
    s.scheduler.update(replace(s.result_of(s.iteration), adapters=list(adapters)))


def test_a_request_enters_when_its_adapter_is_there() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 4, 20)])
    s.step()
    room = s.scheduler.room()
    s.scheduler.add([claim("b", 2, 4, 4, adapter="x"), claim("c", 3, 4, 4)])
    assert (room.requests - s.scheduler.room().requests, room.blocks - s.scheduler.room().blocks) == (2, 4)
    iteration = s.select()
    assert iteration
    assert (s.batch, iteration.adapters) == ({"a": 1, "c": 4}, ["x"])
    finish(s, "y")
    s.select()
    assert s.batch == {"a": 1, "c": 1}
    finish(s, "y", "x")
    iteration = s.select()
    assert iteration
    assert (s.batch, iteration.adapters) == ({"a": 1, "c": 1, "b": 4}, [])
    finish(s)
    s.scheduler.add([claim("d", 4, 4, 4, adapter="x")])  # the engine has it, so nothing is to be read
    s.select()
    assert s.batch == {"a": 1, "c": 1, "b": 1, "d": 4}


def test_an_adapter_that_was_read_is_kept_until_the_engine_has_its_request() -> None:
    s = scripted(batch=2)
    s.scheduler.add([claim("a", 1, 4, 20), claim("c", 2, 4, 3)])
    s.step()
    s.scheduler.add([claim("b", 3, 4, 4, adapter="x")])
    s.select()
    finish(s, "x")
    iteration = s.select()
    assert iteration
    assert (s.batch, iteration.adapters) == ({"a": 1, "c": 1}, ["x"])  # no place is free
    finish(s, "x")
    iteration = s.select()
    assert iteration
    assert (s.batch, iteration.adapters) == ({"a": 1, "b": 4}, [])


def test_a_request_that_would_delay_nobody_enters_at_once() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 4, 4, adapter="x"), claim("b", 2, 4, 4, adapter="y")])
    s.step()
    assert s.batch == {"a": 4, "b": 4}


def test_no_request_waits_for_ever() -> None:
    """For an engine of a build that says nothing of adapters."""
    now = [0.0]
    s = scripted(now=lambda: now[0])
    s.scheduler.add([claim("a", 1, 4, 20)])
    s.step()
    s.scheduler.add([claim("b", 2, 4, 4, adapter="x")])
    s.step()
    now[0] = LONGEST
    s.step()
    assert s.batch == {"a": 1, "b": 4}


def test_few_adapters_are_read_at_once_and_for_those_who_still_wait() -> None:
    s = scripted(batch=20)
    s.scheduler.add([claim("a", 1, 4, 20)])
    s.step()
    s.scheduler.add([claim(f"b{i}", 2 + i, 4, 4, adapter=f"x{i}") for i in range(AT_ONCE + 1)])
    iteration = s.select()
    assert iteration
    assert iteration.adapters == [f"x{i}" for i in range(AT_ONCE)]
    s.finish()
    s.scheduler.cancel(["b0"])
    s.scheduler.drop(["b1"])
    iteration = s.select()
    assert iteration
    assert iteration.adapters == [f"x{i}" for i in range(2, AT_ONCE + 1)]
    assert set(s.scheduler.held()) == {"a", "b0", *(f"b{i}" for i in range(2, AT_ONCE + 1))}
