"""Overload by clients that give up, on the reference model in virtual time."""

import heapq
import random
from collections import deque

from pool_helpers import CANCELLED, STOP, Owner, commit, group

from load.reference.pool import ReferencePool
from services.messages import Room
from services.pool.limits import Limits

TICK = 0.1  # seconds of an iteration
PATIENCE = 20.0  # seconds after which a client gives up
PLACES, SERVICE = 16, 3.2  # five requests per second can be served


class VirtualClock:
    def __init__(self):
        self.time = 1e6

    def now(self):
        return self.time


async def answered(times, seconds):
    """The number of answered requests of an open loop at `times` the rate that can be served."""
    clock, draw = VirtualClock(), random.Random(0)
    pool = ReferencePool(clock, Limits(max_queue_wait=PATIENCE / 2, keep_ended=0.0))
    owner = await Owner.take(pool, lease=1e9)
    leaving, running, open_, whole, sent = deque(), [], set(), 0, 0
    for tick in range(1, round(seconds / TICK)):
        clock.time += TICK
        await pool.heartbeat("gateway", tick, {})
        while sent < times * tick * TICK * PLACES / SERVICE:
            sent += 1
            if (await pool.submit(group(f"r{sent}", new=1))).refused is None:
                open_.add(f"r{sent}/0")
                leaving.append((clock.time + PATIENCE, f"r{sent}"))
        while leaving and leaving[0][0] <= clock.time:
            _, request = leaving.popleft()
            if f"{request}/0" in open_:
                open_.discard(f"{request}/0")
                await pool.cancel(request)
        commits = []
        while running and running[0][0] <= clock.time:
            _, id = heapq.heappop(running)
            whole += id in open_
            commits.append(commit(id, 0, 1, end=STOP if id in open_ else CANCELLED))
            open_.discard(id)
        reply = await owner.exchange(*commits, room=Room(PLACES - len(running), 10_000, 16))
        for claim in reply.claims:
            heapq.heappush(running, (clock.time + SERVICE * draw.uniform(0.5, 1.5), claim.id))
    return whole


async def test_engines_serve_clients_that_still_wait():
    """Ten times the rate that can be served yields almost as many answers as twice that rate."""
    peak, most = await answered(times=2, seconds=60), await answered(times=10, seconds=60)
    assert most >= 0.9 * peak
