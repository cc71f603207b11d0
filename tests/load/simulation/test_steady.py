"""The rule of the headline: the crossing of a latency, and its independence of the trace's length."""

import pytest

from load.curves import Point
from load.simulation import headline
from load.simulation.headline import Steady, crossing
from load.trace import Answer


def served_by(seconds: float):
    """A system that computes one request after the other, each in `seconds` and with as many tokens as it asks for."""

    def serve(trace):
        end, answers = 0.0, []
        for request in trace:
            end = max(end, request.at) + seconds
            answers.append(Answer(request, request.at, times=[end] * request.max_new_tokens))
        return answers

    return serve


@pytest.mark.parametrize("guess", [1.2, 2.0, 7.0])
def test_a_crossing_is_found_from_any_first_rate(guess: float):
    found = crossing(lambda rate: Point(rate, rate**2), guess, 4.0)
    assert found == pytest.approx(2.0, rel=1e-3)


def test_a_latency_that_is_never_as_low_has_no_crossing():
    assert crossing(lambda rate: Point(rate, 5.0), 1.0, 4.0) == 0.0


def test_a_trace_that_is_too_short_to_queue_is_refused():
    with pytest.raises(ValueError, match="too short"):
        crossing(lambda rate: Point(rate, 0.1), 1.0, 4.0)


def test_the_crossing_settles_while_the_latency_of_an_overload_grows_with_the_trace():
    crossings = [Steady(length).crossing(served_by(1.0), 0.5) for length in (400, 800, 1600)]
    assert crossings[1] == pytest.approx(crossings[2], rel=0.05)
    assert all(0.8 < found <= 1.02 for found in crossings)  # it can serve one request in a second


def test_the_headline_takes_the_best_of_each_system():
    systems = {"ft(1, 1)": served_by(1.0), "ft(8, 8)": served_by(2.0), "orca(8)": served_by(0.4)}
    report = headline.report(systems, 400, (0, 1))
    assert "| FasterTransformer, ft(1, 1) | 0.185 | " in report
    assert "| Orca, orca(8) | 6.81 | " in report
