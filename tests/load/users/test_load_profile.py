"""The load over time, and the arrivals of an open loop."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load.users.profile import KINDS, Profile, Stage, arrivals, profile_of, share

LEVELS = st.floats(0, 100)
STAGES = st.lists(st.builds(Stage, st.floats(0.1, 50), LEVELS, LEVELS), min_size=1, max_size=5)
DRAWN = 3000


@given(rate=st.floats(0.1, 1000), burstiness=st.sampled_from([0.25, 1.0, 4.0]), seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_gaps_have_the_mean_of_the_rate_and_the_variance_of_the_burstiness(
    rate: float, burstiness: float, seed: int
) -> None:
    times = [0.0, *islice(arrivals(profile_of("constant", rate, math.inf, 1), burstiness, seed), DRAWN)]
    gaps = [(b - a) * rate for a, b in pairwise(times)]
    mean = sum(gaps) / DRAWN
    # of a gamma distribution of mean 1, whose variance is 1 / burstiness; seven standard errors
    assert mean == pytest.approx(1, abs=7 * math.sqrt(1 / burstiness / DRAWN))
    variance = sum((gap - mean) ** 2 for gap in gaps) / DRAWN
    assert variance * burstiness == pytest.approx(1, abs=7 * math.sqrt((2 + 6 / burstiness) / DRAWN))


@given(stages=STAGES, part=st.floats(0, 0.999))
def test_when_inverts_the_area_below_the_level(stages: list[Stage], part: float) -> None:
    profile = Profile(tuple(stages))
    areas = [stage.arrivals(stage.seconds) for stage in stages]
    wanted = part * sum(areas)
    at = profile.when(wanted)
    if at is not None and math.isfinite(at):
        index, into = profile.locate(at)
        assert sum(areas[:index]) + stages[index].arrivals(into) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    else:
        assert wanted == pytest.approx(sum(areas))
    assert profile.when(sum(areas) + 1) is None


@given(
    kind=st.sampled_from(KINDS), peak=st.floats(1, 100), seconds=st.floats(1, 1000), stages=st.integers(1, 9), at=LEVELS
)
def test_a_shape_lasts_as_long_as_asked_and_goes_up_to_its_peak(
    kind: str, peak: float, seconds: float, stages: int, at: float
) -> None:
    profile = profile_of(kind, peak, seconds, stages)  # type: ignore[arg-type]
    assert profile.seconds == pytest.approx(seconds)
    assert max(max(stage.begin, stage.end) for stage in profile.stages) == pytest.approx(peak)
    level = profile.level(at / 100 * seconds)
    assert level is None or 0 <= level <= peak * 1.000001
    assert profile.level(seconds * 1.000001) is None


@given(workers=st.integers(1, 7), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_workers_together_send_what_one_process_sends(workers: int, seed: int) -> None:
    def every() -> list[float]:
        return list(islice(arrivals(profile_of("constant", 5, math.inf, 1), 0.5, seed), 40))

    shares = [list(share(iter(every()), worker, workers)) for worker in range(workers)]
    assert sorted(turn for one in shares for turn in one) == list(enumerate(every()))
