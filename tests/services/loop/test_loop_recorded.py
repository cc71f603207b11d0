"""An EngineLoop whose iterations are recorded: the frames, and that a defect of an observer harms nothing."""

from __future__ import annotations

import asyncio

import orjson

from services.live.recorder import Recorder
from services.loop.clock import now
from services.loop.observers import Observer, Observers
from services.messages import Iteration
from tests.services.loop.world import SEAT, WORD, World, stop, virtual


async def recorded(world: World) -> tuple[asyncio.Task[None], Recorder]:
    """Take the seat with a recorder that is turned on."""
    loop = await world.take_seat()
    recorder = Recorder(SEAT, world.epoch, world.scheduler, now)
    recorder.watch(True)
    loop._observers = Observers([recorder])
    return asyncio.create_task(loop.run()), recorder


@virtual
async def test_the_frames_of_two_requests() -> None:
    world = World(exchange=0.001)
    loop, recorder = await recorded(world)
    await asyncio.sleep(1)
    first = await world.submit("a", prompt=20, new=3)
    await asyncio.sleep(0.15)
    second = await world.submit("b", prompt=30, new=1)
    await world.ended(first, second)
    batch = recorder.take()
    assert batch
    frames = orjson.loads(batch.iterations)
    assert [frame["requests"] for frame in frames] == [
        [[1, 20, "i"]],
        [[1, 1, "t"]],
        [[1, 1, "t"]],
        [[2, 30, "i"]],
    ]
    assert [(frame["step"], frame["at"], frame["ms"]) for frame in frames] == [
        (1, 1001, 100.0),
        (2, 1101, 100.0),
        (3, 1201, 100.0),
        (4, 1301, 100.0),
    ]
    assert [frame["blocks"] for frame in frames] == [2, 2, 2, 2]
    assert [frame["ended"] for frame in frames] == [[], [], [[1, "length"]], [[2, "length"]]]
    assert [request.id for request in batch.requests] == [first, second]
    await stop(world, loop)


@virtual
async def test_nothing_is_recorded_while_nobody_watches() -> None:
    world = World()
    loop, recorder = await recorded(world)
    recorder.watch(False)
    await world.ended(await world.submit("a"))
    assert recorder.take() is None
    await stop(world, loop)


class Broken(Observer):
    """Raises at the second iteration."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def started(self, iteration: Iteration) -> None:
        self.steps.append(iteration.step)
        if len(self.steps) > 1:
            raise LookupError("a defect of an observer")


@virtual
async def test_a_defect_of_an_observer_costs_no_request() -> None:
    world = World()
    broken, other = Broken(), Broken()
    world.observers = [broken, other]
    id = await world.submit("a", new=4)
    loop = await world.run()
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 4, "length")
    assert broken.steps == other.steps == [1, 2], "it is not called again"
    await stop(world, loop)
