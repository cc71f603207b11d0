"""When an idle engine goes down a state, which engine of a pool wakes up, and what requests wait for."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.overview import Overview, SeatOverview, SleepLevel
from services.sleep import SleepRule, is_needed, reason_to_wait

DELAY = 10.0


def seat(name: str, level: SleepLevel = SleepLevel.AWAKE, alive: bool = True, **gauges: float) -> SeatOverview:
    return SeatOverview(name, alive, None, 0, {"ready": 1.0, "sleep": float(level)} | gauges, "")


def pool(*seats: SeatOverview, waiting: int = 1) -> Overview:
    return Overview(waiting, 0, 0, 0, None, list(seats), {}, 1)


@given(st.floats(0.5, 1e4), st.sampled_from([SleepLevel.COLD, SleepLevel.OFF]), st.floats(0, 1e5))
def test_each_state_lasts_as_long_and_the_deepest_one_for_ever(after: float, deepest: SleepLevel, idle: float) -> None:
    rule = SleepRule(after, deepest)
    level, due = rule.level(idle), rule.due(idle)
    assert level == min(int(idle / after), deepest)
    assert (due == inf) == (level == deepest)
    if due < inf:
        assert 0 < due <= after * (1 + 1e-9)
        assert rule.level((idle + due) * (1 + 1e-9)) == level + 1


@given(st.floats(0, 1e9))
def test_without_a_time_no_engine_sleeps(idle: float) -> None:
    assert SleepRule().level(idle) is SleepLevel.AWAKE
    assert SleepRule().due(idle) == inf


COLD, OFF, ASLEEP = SleepLevel.COLD, SleepLevel.OFF, SleepLevel.ASLEEP


@pytest.mark.parametrize(
    ("overview", "waited", "needed"),
    [
        (pool(seat("c/1", COLD)), 0.0, True),
        (pool(seat("c/1", COLD), waiting=0), 0.0, False),
        (pool(seat("c/0", OFF), seat("c/1", COLD)), 0.0, False),  # the first one wakes up
        (pool(seat("c/0", OFF), seat("c/1", COLD)), DELAY, True),  # both are needed
        (pool(seat("c/0", OFF, alive=False), seat("c/1", COLD)), 0.0, True),
        (pool(seat("c/1", COLD), seat("c/2")), 0.0, False),  # one is awake
        (pool(seat("c/1", COLD), seat("c/2", ASLEEP)), 0.0, False),
        (pool(seat("c/1", COLD), seat("c/2")), DELAY, True),  # and busy
        (pool(seat("c/1", COLD), seat("c/2", ready=0.0)), 0.0, True),  # it loads, or fails to
        (pool(seat("c/1", COLD, ready=0.0)), 0.0, True),  # it has failed before
    ],
)
def test_an_engine_wakes_up_if_none_is_awake_or_requests_have_waited_long(
    overview: Overview, waited: float, needed: bool
) -> None:
    assert is_needed(overview, "c/1", waited, DELAY) is needed


@pytest.mark.parametrize(
    ("overview", "reason"),
    [
        (pool(seat("c/0", COLD), seat("c/1")), ""),
        (pool(seat("c/0", ASLEEP)), ""),
        (
            pool(seat("c/0", COLD, waking_seconds=3)),
            "the model was cold and wakes up, which took 3.0 s last time",
        ),
        (pool(seat("c/0", OFF), seat("c/1", ready=0.0)), "the model was off and wakes up"),
        (pool(seat("c/0", ready=0.0)), "no engine is ready"),
        (pool(replace(seat("c/0", ready=0.0), summary="it is too large")), "no engine is ready: it is too large"),
        (pool(replace(seat("c/0", ready=0.0), summary="it"), seat("c/1", COLD)), "the model was cold and wakes up"),
        (pool(replace(seat("c/0", alive=False, ready=0.0), summary="it")), "no engine is ready"),
        (pool(), "no engine is ready"),
        (None, "no engine is ready"),
    ],
)
def test_what_requests_wait_for(overview: Overview | None, reason: str) -> None:
    assert reason_to_wait(overview) == reason
