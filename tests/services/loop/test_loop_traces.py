"""The spans that schedulers write of requests that are preempted, taken over or given back; a collector gets them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator

import pytest
from span_collector import Collector, ReceivedSpan
from world import Connection, World, stop, virtual

from services.errors import EngineLost, StaleEpoch
from services.scheduling import Knobs
from services.tracing.tracer import Tracer


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def tracer(collector: Collector) -> Tracer:
    return Tracer(collector.endpoint, "scheduler")


class Traced:
    """The trace of one request."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(16)
        self.context = f"00-{self.id}-{'1' * 16}-01"

    def spans(self, tracer: Tracer, collector: Collector) -> list[ReceivedSpan]:
        """What the collector has of it after the end of the process."""
        tracer.close()
        return collector.of(self.id)


def ends(spans: list[ReceivedSpan]) -> list[str]:
    return sorted(span.attributes["orca.ended_by"] for span in spans if span.name == "tenure")


async def until_it_has(count: int, world: World, id: str) -> None:
    """Wait until the request has so many tokens."""
    while len((await world.read(id))[0]) < count:  # noqa: ASYNC110 - on virtual time
        await asyncio.sleep(0.05)


def test_times_are_those_of_the_iterations(collector: Collector, tracer: Tracer) -> None:
    trace = Traced()

    @virtual
    async def run() -> None:
        world = World(iteration=lambda iteration: 0.5)
        world.tracer = tracer
        loop = await world.run()
        await world.ended(await world.submit("r", new=4, trace=trace.context), await world.submit("untraced"))
        await stop(world, loop)

    run()
    spans = {span.name: span for span in trace.spans(tracer, collector)}
    assert set(spans) == {"queue", "tenure", "engine", "prefill", "decode"}
    assert spans["engine"].attributes["orca.iterations"] == 4
    assert spans["engine"].attributes["orca.iteration_seconds"] == pytest.approx(2.0)
    assert spans["engine"].end - spans["engine"].begin == pytest.approx(2.0, abs=0.1)
    assert spans["prefill"].end - spans["prefill"].begin == pytest.approx(0.5, abs=0.1)
    assert {span.trace for span in collector.spans if span.pid == spans["tenure"].pid} == {trace.id}


def test_a_preempted_request_says_when(collector: Collector, tracer: Tracer) -> None:
    first, second = Traced(), Traced()

    @virtual
    async def run() -> None:
        world = World(blocks=4, knobs=Knobs(4, admission="on_demand"))
        world.tracer = tracer
        loop = await world.run()
        ids = [await world.submit(t.id, prompt=16, new=30, trace=t.context) for t in (first, second)]
        await world.ended(*ids)
        await stop(world, loop)

    run()
    spans = first.spans(tracer, collector) + collector.of(second.id)
    assert ends(spans) == ["finished", "finished"]
    (preempted,) = [span.events for span in spans if span.name == "tenure" and span.events]
    assert preempted["preempted"] < preempted["recomputed"]


def test_the_next_owner_writes_the_tenure_of_one_that_was_killed(collector: Collector, tracer: Tracer) -> None:
    trace = Traced()

    @virtual
    async def run() -> None:
        world = World()
        world.tracer = tracer
        first = world.connection
        silent = await world.run("first")
        id = await world.submit("r", new=30, trace=trace.context)
        await until_it_has(5, world, id)
        first.down = "request"  # a scheduler that is killed, or stands still, tells nobody
        dead = world.epoch
        world.connection = Connection(world.pool, 0.001)
        loop = await world.run("second", dead_epoch=dead)
        await world.ended(id)
        await stop(world, loop)
        first.down = ""
        with pytest.raises(StaleEpoch):  # it goes on, and writes nothing
            await silent

    run()
    spans = trace.spans(tracer, collector)
    assert ends(spans) == ["finished", "taken"]
    assert len([span for span in spans if span.name == "queue"]) == 2
    tenures = {span.attributes["orca.ended_by"]: span.attributes for span in spans if span.name == "tenure"}
    taken, finished = tenures["taken"], tenures["finished"]
    assert taken["orca.epoch"] != finished["orca.epoch"]
    assert finished["orca.resumed_tokens"] >= 5


@pytest.mark.parametrize(("dies", "ended_by"), [(5, "engine_lost"), (0, "released")])
def test_an_owner_writes_what_it_gives_back(collector: Collector, tracer: Tracer, dies: int, ended_by: str) -> None:
    trace = Traced()

    @virtual
    async def run() -> None:
        world = World()
        world.tracer, world.engine.dies = tracer, dies
        loop = await world.run()
        id = await world.submit("r", new=30, trace=trace.context)
        await until_it_has(4, world, id)
        if not dies:
            world.loop.stop()
        with contextlib.suppress(EngineLost):
            await loop
        await world.pool.release("c/0", world.epoch, [])
        world.engine.dies = 0
        again = await world.run("second")
        await world.ended(id)
        await stop(world, again)

    run()
    assert ends(trace.spans(tracer, collector)) == sorted([ended_by, "finished"])


def test_a_context_of_another_format_is_not_traced(collector: Collector, tracer: Tracer) -> None:
    """Of a later build, for instance: the request is answered all the same."""

    @virtual
    async def run() -> None:
        world = World()
        world.tracer = tracer
        loop = await world.run()
        await world.ended(await world.submit("r", trace="v9 of a later build"))
        await stop(world, loop)

    before = len(collector.spans)
    run()
    tracer.close()
    assert len(collector.spans) == before
