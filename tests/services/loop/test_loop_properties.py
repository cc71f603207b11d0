"""With any deaths and outages, every request ends once, with the tokens of an undisturbed run."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from services.loop.clock import run_in_virtual_time
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler
from tests.services.loop.poison import PACKING, SITES, poisonous
from tests.services.loop.scenario import Crash, PlannedRequest, Scenario, ScenarioRun

moments = st.floats(0, 8)
kinds = st.sampled_from([Scheduler, RequestLevelScheduler])
plans = st.builds(
    PlannedRequest,
    moments,
    prompt=st.integers(1, 200),
    new=st.integers(1, 30),
    cancel=st.none() | moments,
    logprobs=st.booleans(),
    prompt_logprobs=st.sampled_from([None, 0, 2]),
)
some_plans = st.lists(plans, min_size=1, max_size=8)
outages = st.lists(st.tuples(moments, st.floats(0.01, 4), st.sampled_from(["request", "reply"])), max_size=3)
crashes = st.builds(Crash, moments, age=st.floats(0, 2), away=st.floats(0, 3), noticed=st.booleans())
knobs = st.sampled_from(
    [
        Knobs(3),
        Knobs(3, lookahead=1),
        Knobs(2, batches_in_flight=3),
        Knobs(3, tbt_target=0.25, stretch_target=True, admission="on_demand", prefix_caching=True),
        Knobs(3, token_budget=20, admission="on_demand", lookahead=1, prefix_caching=True),
        Knobs(3, token_budget=7, admission="on_demand", order="priority", batches_in_flight=2, prefix_caching=True),
    ]
)


def short_requests(**more: SearchStrategy[Any]) -> SearchStrategy[list[PlannedRequest]]:
    """Some short requests, of which `more` are further fields."""
    plan = st.builds(PlannedRequest, moments, prompt=st.integers(1, 100), new=st.integers(1, 20), **more)
    return st.lists(plan, min_size=1, max_size=8)


def scenarios(
    requests: SearchStrategy[list[PlannedRequest]], **faults: SearchStrategy[Any]
) -> SearchStrategy[Scenario]:
    times = {"exchange": st.floats(0.001, 0.3), "iteration": st.floats(0.01, 0.4)}
    return st.builds(Scenario, kinds, requests, **faults, **times, knobs=knobs)


def play(scenario: Scenario) -> None:
    async def main() -> None:
        run = ScenarioRun(scenario)
        with poisonous({client.id: client.plan.poison for client in run.clients if client.plan.poison}):
            await run.play()

    run_in_virtual_time(main())


@settings(max_examples=60)
@given(
    scenarios(
        some_plans,
        outages=outages,
        deaths=st.sets(st.integers(1, 60), max_size=2),  # a third one may end a request that is not the cause
        usurper=st.none() | moments,
    )
)
def test_nothing_is_lost_or_duplicated(scenario: Scenario) -> None:
    play(scenario)


@settings(max_examples=60)
@given(
    scenarios(
        some_plans,
        crashes=st.lists(crashes, min_size=1, max_size=2),
        deaths=st.sets(st.integers(1, 60), max_size=2),
        usurper=st.none() | moments,
    )
)
def test_nothing_is_lost_if_the_pool_comes_back_with_an_older_state(scenario: Scenario) -> None:
    play(scenario)


@settings(max_examples=60)
@given(scenarios(short_requests(kills=st.sampled_from([None, None, None, 0, 1, 5])), outages=outages))
def test_a_request_that_kills_the_engine_fails_alone(scenario: Scenario) -> None:
    play(scenario)


@settings(max_examples=100)
@given(
    scenarios(
        short_requests(logprobs=st.booleans(), poison=st.sampled_from(["", "", "", *SITES, PACKING])), outages=outages
    )
)
def test_a_request_that_makes_the_scheduler_raise_fails_alone(scenario: Scenario) -> None:
    play(scenario)
