"""VirtualEngine: an engine that only costs time, in one or more pipeline stages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from load.simulation.cost import IterationTime, RequestState
from services.messages import Iteration, IterationResult

TOKEN = 5  # the token that it always samples


class Cost(Protocol):
    def iteration(self, rows: list[RequestState], sampled: int) -> IterationTime: ...


@dataclass(slots=True)
class _Counters:
    """How many tokens of a request have keys and values, and how many are known."""

    computed: int
    known: int


class VirtualEngine:
    """An engine of the loop on virtual time. Each stage runs one iteration at a time, in the order of `start`.

    A guess of a draft is right with the probability `accepted`, if all before it are. A scheduler has guesses, because
    a text of equal tokens repeats itself.
    """

    def __init__(self, cost: Cost, accepted: float = 0.0) -> None:
        self._cost, self._accepted, self._draws = cost, accepted, random.Random(1)
        self._requests: dict[str, _Counters] = {}
        self._free_at: list[float] = []  # of each stage

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Start the iteration now, after those that were started before."""
        self._take(iteration)
        rows, sampled = self._run(iteration)
        drafted = sum(map(len, iteration.drafts.values()))
        time = self._cost.iteration(rows, len(sampled) + drafted)
        loop = asyncio.get_running_loop()
        self._free_at = self._free_at or [loop.time()] * len(time.stages)
        done = time.leave(self._free_at, loop.time())
        tokens, more = dict.fromkeys(sampled, TOKEN), {id: [TOKEN] * right for id, right in sampled.items() if right}
        result = IterationResult(iteration.epoch, iteration.step, tokens, elapsed=time.total, more=more)
        future: asyncio.Future[IterationResult] = loop.create_future()
        loop.call_at(done, future.set_result, result)
        return future

    def _take(self, iteration: Iteration) -> None:
        for id in iteration.released:
            self._requests.pop(id, None)
        for new in iteration.new:
            self._requests[new.id] = _Counters(new.num_computed_tokens, len(new.token_ids))

    def _run(self, iteration: Iteration) -> tuple[list[RequestState], dict[str, int]]:
        """The rows of the iteration, and the requests for which it samples a token, with how many tokens of their
        drafts are right."""
        rows, sampled = [], dict[str, int]()
        for id, tokens in iteration.scheduled.items():
            request = self._requests[id]
            draft = iteration.drafts.get(id, [])
            rows.append((request.computed, tokens + len(draft)))
            request.computed += tokens
            assert request.computed <= request.known, f"{id}: {request.computed} tokens computed of {request.known}"
            if request.computed == request.known:
                right = sum(1 for _ in takewhile(lambda _: self._draws.random() < self._accepted, draft))
                request.computed += right
                request.known += 1 + right
                sampled[id] = right
        return rows, sampled
