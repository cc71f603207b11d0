"""Whatever dies and however the pool's line behaves: every request ends once, with an undisturbed run's tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from services.loop.clock import run_in_virtual_time
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler
from tests.services.loop.loop_stage import Crash, Order, Stage, Story
from tests.services.loop.poison import PACKING, SITES, poisonous

moments = st.floats(0, 8)
kinds = st.sampled_from([Scheduler, RequestLevelScheduler])
orders = st.builds(
    Order,
    moments,
    prompt=st.integers(1, 200),
    new=st.integers(1, 30),
    cancel=st.none() | moments,
    logprobs=st.booleans(),
    prompt_logprobs=st.sampled_from([None, 0, 2]),
)
some_orders = st.lists(orders, min_size=1, max_size=8)
outages = st.lists(st.tuples(moments, st.floats(0.01, 4), st.sampled_from(["request", "reply"])), max_size=3)
crashes = st.builds(Crash, moments, age=st.floats(0, 2), away=st.floats(0, 3), noticed=st.booleans())
knobs = st.sampled_from(
    [
        Knobs(3),
        Knobs(3, lookahead=1),
        Knobs(2, batches_in_flight=3),
        Knobs(3, token_budget=20, admission="on_demand", lookahead=1, prefix_caching=True),
        Knobs(3, token_budget=7, admission="on_demand", order="priority", batches_in_flight=2, prefix_caching=True),
    ]
)
exchanges, iterations = st.floats(0.001, 0.3), st.floats(0.01, 0.4)


def play(story: Story) -> None:
    async def main() -> None:
        stage = Stage(story)
        with poisonous({client.id: client.order.poison for client in stage.clients if client.order.poison}):
            await stage.play()

    run_in_virtual_time(main())


@settings(max_examples=60)
@given(
    st.builds(
        Story,
        kinds,
        some_orders,
        outages=outages,
        deaths=st.sets(st.integers(1, 60), max_size=2),  # the third death in a row may blame the innocent
        usurper=st.none() | moments,
        exchange=exchanges,
        iteration=iterations,
        knobs=knobs,
    )
)
def test_nothing_is_lost_or_doubled(story: Story) -> None:
    play(story)


@settings(max_examples=60)
@given(
    st.builds(
        Story,
        kinds,
        some_orders,
        crashes=st.lists(crashes, min_size=1, max_size=2),
        deaths=st.sets(st.integers(1, 60), max_size=2),
        usurper=st.none() | moments,
        exchange=exchanges,
        iteration=iterations,
        knobs=knobs,
    )
)
def test_nothing_is_lost_when_the_pool_comes_back_with_an_older_state(story: Story) -> None:
    play(story)


@settings(max_examples=60)
@given(
    st.builds(
        Story,
        kinds,
        st.lists(
            st.builds(
                Order,
                moments,
                prompt=st.integers(1, 100),
                new=st.integers(1, 20),
                kills=st.sampled_from([None, None, None, 0, 1, 5]),
            ),
            min_size=1,
            max_size=8,
        ),
        outages=outages,
        exchange=exchanges,
        iteration=iterations,
        knobs=knobs,
    )
)
def test_who_kills_the_engine_fails_alone(story: Story) -> None:
    play(story)


@settings(max_examples=100)
@given(
    st.builds(
        Story,
        kinds,
        st.lists(
            st.builds(
                Order,
                moments,
                prompt=st.integers(1, 100),
                new=st.integers(1, 20),
                logprobs=st.booleans(),
                poison=st.sampled_from(["", "", "", *SITES, PACKING]),
            ),
            min_size=1,
            max_size=8,
        ),
        outages=outages,
        exchange=exchanges,
        iteration=iterations,
        knobs=knobs,
    )
)
def test_who_makes_the_scheduler_raise_fails_alone(story: Story) -> None:
    play(story)
