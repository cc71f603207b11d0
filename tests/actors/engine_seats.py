"""Seats with null engines on a real Ray cluster, and the status of their processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ray
from ray.actor import ActorHandle

from actors.engine import EngineStatus
from actors.engine_client import EngineClient
from actors.engine_processes import CheckOwner, EngineProcesses
from actors.placement import engine_names, find_engine
from load.server import until
from services.loop.iteration_cost import IterationCost
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams
from services.settings.settings import Settings
from services.settings.sources import load

SETTINGS = load(null_engine=True)
WAIT = 120.0  # seconds


async def always_owner() -> None:
    """Checks the owner of a seat that is never lost."""


def seat(settings: Settings = SETTINGS, node: str = "", check_owner: CheckOwner = always_owner) -> EngineProcesses:
    return EngineProcesses(settings, 0, node or ray.util.get_node_ip_address(), check_owner)


async def attach(engine: EngineProcesses, epoch: str) -> EngineClient:
    client, attachment = await asyncio.wait_for(engine.open_client(epoch, IterationCost()), WAIT)
    assert attachment.figures.num_blocks > 0
    return client


async def never_busy() -> bool:
    """Of an engine without requests."""
    return False


@asynccontextmanager
async def keeping_spare(engine: EngineProcesses, client: EngineClient, epoch: str) -> AsyncIterator[None]:
    """Keep a spare in the body of the `with` statement; there is one when the body begins."""
    keeping = asyncio.create_task(engine.keep_spares(epoch, client.names, 1.0, never_busy))
    await until(lambda: engine.has_spare)
    yield
    assert not keeping.done()
    keeping.cancel()


async def attach_with_spare(epoch: str) -> EngineClient:
    """Attach to an engine whose other process is a spare."""
    engines = seat()
    client = await attach(engines, epoch)
    async with keeping_spare(engines, client, epoch):
        return client


def spare_name(client: EngineClient) -> str:
    """The name of the actor of the other process, for an engine of one rank."""
    (name,) = set(engine_names("0")) - {client.status.name}
    return name


def iteration(epoch: str) -> Iteration:
    return Iteration(
        epoch, 1, {"r/0": 2}, new=[NewRequest("r/0", [1, 2], 2, SamplingParams(4))], new_blocks={"r/0": [0]}
    )


async def served(name: str) -> str | None:
    """The epoch that the engine actor of that name serves; None if it has no weights."""
    return (await status_of(name)).epoch


async def status_of(name: str) -> EngineStatus:
    """The status of the engine actor of that name, as soon as it answers."""
    status: EngineStatus = await asyncio.wait_for(named(name).status.remote(), WAIT)
    return status


def named(name: str) -> ActorHandle[Any]:
    actor = find_engine(name)
    assert actor is not None
    return actor
