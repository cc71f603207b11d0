"""Samples, targets, and what a test counts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.users.sample import Sample, parse_targets
from load.users.tally import LATE, Distribution, Tally

MS = st.floats(0, 5000)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    ttft, tokens = draw(st.none() | MS), draw(st.integers(0, 50))
    return Sample(
        stage=draw(st.integers(0, 2)),
        user="ChatUser",
        path="/v1/chat/completions",
        at=1.5,
        late=draw(st.floats(0, 300)),
        ttft=ttft,
        e2e=(ttft or 0) + draw(MS),
        prompt_tokens=draw(st.none() | st.integers(1, 9)),
        output_tokens=tokens,
        streamed=draw(st.booleans()),
        error=draw(st.none() | st.just("status 500")),
        gaps=draw(st.lists(MS, max_size=3)),
    )


def sample(**changed: Any) -> Sample:
    as_given = {"ttft": 100.0, "e2e": 1100.0, "output_tokens": 11, "streamed": True, "late": 0.0, "stage": 0}
    return Sample(**{"user": "u", "path": "/", "at": 0.0, "prompt_tokens": 1, **as_given, **changed})


@given(samples())
def test_a_sample_survives_json(one: Sample) -> None:
    assert Sample.of(json.loads(json.dumps(one.record()))) == one


@given(st.lists(samples(), max_size=20), MS, MS, MS)
def test_goodput_counts_the_answers_that_meet_all_targets(
    answers: list[Sample], ttft: float, tpot: float, e2el: float
) -> None:
    tally = Tally(3, {"ttft": ttft, "tpot": tpot, "e2el": e2el})
    for one in answers:
        tally.send(one.stage)
        tally.end(one)
    good = 0
    for one in answers:
        late_tokens = one.streamed and one.output_tokens > 1 and one.ttft is not None
        mean = (one.e2e - (one.ttft or 0)) / (one.output_tokens - 1) if late_tokens else 0
        good += one.error is None and (one.ttft or 0) <= ttft and mean <= tpot and one.e2e <= e2el
    assert tally.total("good") == good
    assert tally.total("failed") == sum(one.error is not None for one in answers)
    assert tally.total("sent") == tally.total("answered") + tally.total("failed")
    assert tally.total("late") == sum(one.late > LATE for one in answers)


def test_measures_are_those_of_vllm() -> None:
    one = sample(gaps=[90.0, 910.0])
    assert (one.tpot, one.worst_gap) == (100.0, 910.0)
    assert sample(output_tokens=1).tpot is None
    assert sample(streamed=False).tpot is None
    assert one.meets(parse_targets("ttft:100 tpot:100 e2el:1100"))
    assert not one.meets(parse_targets("ttft:99"))
    assert not one.meets(parse_targets("tpot:99"))
    assert not one.meets(parse_targets("e2el:1099"))
    assert not sample(error="gone").meets({})


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:nan", "itl:5", "tpot:50 ttft:-1"])
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="target"):
        parse_targets(text)


@given(st.lists(st.integers(1, 999), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(values: list[int], share: float) -> None:
    seen = Distribution()
    for value in values:
        seen.add(float(value))
    assert seen.percentile(share) == sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


def test_the_knee_is_the_last_stage_before_the_targets_are_missed() -> None:
    tally = Tally(3, {"ttft": 150.0})
    for stage, good in enumerate((10, 9, 8)):
        for i in range(10):
            tally.send(stage)
            tally.end(sample(stage=stage, ttft=100.0 if i < good else 200.0))
    assert tally.knee(2) is None
    assert tally.knee(3) == 1
    tally.send(0, 5)  # not answered yet
    assert tally.knee(3) == -1
